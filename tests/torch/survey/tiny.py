"""Tiny configurations of architectures: the published ones with small sizes.

What belongs together stays together: numbers that are the width in the published configuration are
the width of the small one, lists of widths and of heads keep their ratios, keys have as many heads
as queries if they had, and what is counted in layers, halves of a head or patches follows those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 128
IMAGE, PATCH = 32, 8

WIDTHS = (
    r"hidden_size|.*_hidden_size|d_model|n_embd|dim|embed_dim|.*embed_dim|hidden_dim|.*_hidden_dim"
    r"|embedding_size|.*_embedding_size|projection_dim|.*_dim|proj_size|.*_width|width|d_latents"
)
"""Names of fields that are widths, unless another pattern has them."""

SIZES: tuple[tuple[str, int], ...] = (
    (r"(num_|n_)?(key_value|kv)_heads|num_kv_heads|multi_query_group_num", 2),
    (r".*(num|n)_.*heads?|.*_heads|n_head|num_heads", HEADS),
    (r"head_dim|rotary_dim|.*_head_dim|d_kv|attention_head_size|kv_channels", WIDTH // HEADS),
    (r"(num|n)_(experts_per_tok|activated_experts|.*experts_per_token)|moe_topk|top_k|moe_k", 2),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|.*num_experts", 4),
    (r"(n|num)_(expert_)?groups?|topk_group|n_group", 1),
    (r"num_kv_shared_layers", 0),
    (r".*(num|n)_.*layers?|.*_layers|depth|.*_depth|num_blocks|n_blocks|layers"
     r"|num_self_attends_per_block", LAYERS),
    (r".*(intermediate|ffn|inner|mlp|feed_?forward|feedforward).*(size|dim|hidden)?.*", 2 * WIDTH),
    (r"(q|kv)_lora_rank|.*_rank", 16),
    (r"vocab_size.*|.*_vocab_size|num_embeddings", WORDS),
    (r"max_.*position.*|n_positions|n_ctx|max_seq.*|.*max_length|block_size", 128),
    (r"image_embedding_size", IMAGE // PATCH),
    (r"window_size", 2),
    (r"num_queries", 8),
    (r"output_channels", WIDTH),
    (r"num_pos_feats", WIDTH // 2),
    (r"image_size|input_size|img_size", IMAGE),
    (r"patch_size|.*_patch_size", PATCH),
    (r"num_frames|frames_per_clip", 4),
    (r"coordinate_size", WIDTH // 8),
    (r"shape_size", WIDTH // 4),
    (WIDTHS, WIDTH),
)  # fmt: skip
"""Fields, by the pattern of their names, and the sizes they get unless they are smaller. The first
pattern that matches counts."""

KEPT = {"num_labels", "num_channels", "in_channels", "num_attention_heads_list"}

UNSAID: dict[str, Any] = {
    "head_dim": WIDTH // HEADS,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse"],
    "sliding_window": 16,
    "vocabulary_map": {"<image>": 4},
}
"""Values of fields for which a class has ``None`` and every checkpoint a value."""

SPECIAL = re.compile(r"(.*_)?(pad|bos|eos|sep|cls|decoder_start)_token_id")
"""Names of tokens that embeddings and attention masks look at."""


def shrink(config: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Makes a configuration of transformers, and those within, small; in place."""
    if id(config) in seen:
        return config
    published = {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and name not in KEPT
    }
    for name, value in published.items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, seen | {id(config)})
        else:
            small = _small(name, value, published)
            if small is not value:
                setattr(config, name, small)
    if "use_cache" in published:
        config.use_cache = False
    if "use_pretrained_backbone" in published:
        config.use_pretrained_backbone = False
    return config


def _small(name: str, value: Any, published: Mapping[str, Any]) -> Any:
    """The value of a field in the small configuration."""
    if SPECIAL.fullmatch(name):
        first = value[0] if isinstance(value, list) and value else value
        return first if not isinstance(first, int) or first < WORDS else 1
    if value is None and {"num_hidden_layers", "vocabulary_map"} & {*published}:
        return UNSAID.get(name)
    if name == "rope_parameters" and isinstance(value, dict):
        return _positions(value, published)
    if isinstance(value, int) and not isinstance(value, bool):
        return _number(name, value, published)
    if isinstance(value, list | tuple) and value:
        return type(value)(_list(name, value, published))
    return value


def _number(name: str, value: int, published: Mapping[str, Any]) -> int:
    if re.fullmatch(SIZES[0][0], name) and value == published.get("num_attention_heads"):
        return min(value, HEADS)
    if name == "image_size" and "depths" in published:
        return min(value, 2 * IMAGE)  # which every stage halves
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return _widths(published).get(value, value)


def _widths(published: Mapping[str, Any]) -> dict[int, int]:
    """Published widths of some size, and what they become."""
    return {
        value: WIDTH
        for name, value in published.items()
        if type(value) is int and value > WIDTH and _pattern(name) == WIDTHS
    }


def _pattern(name: str) -> str:
    return next((pattern for pattern, _ in SIZES if re.fullmatch(pattern, name)), "")


def _list(name: str, values: Sequence[Any], published: Mapping[str, Any]) -> list[Any]:
    layers = published.get("num_hidden_layers")
    if all(isinstance(value, str) for value in values):
        is_of_layers = name.endswith(_KINDS) and name not in _STAGES
        return _alternating(values) if is_of_layers else [*values]
    if len(values) == layers and layers > LAYERS:
        values = values[:LAYERS]
    if not all(type(value) is int for value in values):
        return [*values]
    if name in ("depths", "blocks_per_stage"):
        return [min(value, LAYERS) for value in values]
    heads = published.get("num_attention_heads")
    if "key_value_heads" in name and isinstance(heads, int):
        return [max(1, value * HEADS // heads) for value in values]
    if "head" in name:
        first = 1 << (values[0].bit_length() - 1)
        return [value * first // values[0] for value in values]
    if _pattern(name) and _pattern(name) != WIDTHS:
        return [_number(name, value, published) for value in values]
    width = next((value for value in values if value in _widths(published)), None)
    return [value * WIDTH // width for value in values] if width else [*values]


_KINDS = ("layer_types", "layers_block_type", "block_types", "indexer_types")
_STAGES = ("down_block_types", "up_block_types")


def _alternating(kinds: Sequence[Any]) -> list[Any]:
    """As many layers as there are, of as many kinds as possible."""
    different = list(dict.fromkeys(kinds))
    return [different[at % len(different)] for at in range(LAYERS)]


def _positions(parameters: dict[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions: their sections fill half a head, and every kind of layer has them."""
    if not parameters and "layer_types" in published:
        plain = {"rope_type": "default", "rope_theta": 10000.0}
        return {kind: dict(plain) for kind in set(published["layer_types"])}
    sections = {name: size for name, size in parameters.items() if name.endswith("section")}
    if parameters.get("rope_type") == "default":
        sections.setdefault("mrope_section", [3, 3, 2])  # of which the code has a default
    half = int(WIDTH // HEADS // 2 * parameters.get("partial_rotary_factor", 1))
    return parameters | {name: _scaled(sizes, half) for name, sizes in sections.items()}


def _scaled(sizes: Sequence[int], whole: int) -> list[int]:
    scaled = [max(1, size * whole // sum(sizes)) for size in sizes]
    return [whole - sum(scaled[1:]), *scaled[1:]]
