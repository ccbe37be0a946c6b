"""Tiny configurations of architectures: the published ones with small sizes."""

from __future__ import annotations

import re
from typing import Any

WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 128

SIZES: tuple[tuple[str, int], ...] = (
    (r"(num_|n_)?(key_value|kv)_heads|num_kv_heads|multi_query_group_num", 2),
    (r".*(num|n)_.*heads?|.*_heads|n_head|num_heads", HEADS),
    (r"head_dim|.*_head_dim|d_kv|attention_head_size|kv_channels", WIDTH // HEADS),
    (r"(num|n)_(experts_per_tok|activated_experts|.*experts_per_token)|moe_topk|top_k|moe_k", 2),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|.*num_experts", 4),
    (r"(n|num)_(expert_)?groups?|topk_group|n_group", 1),
    (r".*(num|n)_.*layers?|.*_layers|depth|.*_depth|num_blocks|n_blocks|layers", LAYERS),
    (r".*(intermediate|ffn|inner|mlp|feed_?forward|feedforward).*(size|dim|hidden)?.*", 2 * WIDTH),
    (r"(q|kv)_lora_rank|.*_rank", 16),
    (r"vocab_size|.*_vocab_size|num_embeddings", WORDS),
    (r"max_.*position.*|n_positions|n_ctx|max_seq.*|.*max_length|block_size", 128),
    (r"image_size|input_size|img_size", 32),
    (r"patch_size|.*_patch_size", 8),
    (r"hidden_size|.*_hidden_size|d_model|n_embd|dim|embed_dim|.*embed_dim|hidden_dim|.*_hidden_dim"
     r"|embedding_size|.*_embedding_size|projection_dim|.*_dim|proj_size|.*_width|width", WIDTH),
)  # fmt: skip
"""Fields, by the pattern of their names, and the sizes they get unless they are smaller. The first
pattern that matches counts."""


def shrink(config: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Makes a configuration of transformers, and those within, small; in place."""
    if id(config) in seen:
        return config
    for name, value in list(vars(config).items()):
        if name.startswith("_") or name in KEPT:
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, seen | {id(config)})
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            setattr(config, name, _size(name, value))
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types"):
            setattr(config, name, _alternating(list(value)))
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
                 "sep_token_id", "cls_token_id"):  # fmt: skip
        value = getattr(config, name, None)
        if isinstance(value, list):
            value = value[0]
        if isinstance(value, int) and value >= WORDS:
            setattr(config, name, 1)
    return config


KEPT = {"num_labels", "num_channels", "in_channels", "num_attention_heads_list"}


def _size(name: str, value: int) -> int:
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return value


def _alternating(kinds: list[Any]) -> list[Any]:
    """As many layers as there are, of as many kinds as possible."""
    different = list(dict.fromkeys(kinds))
    return [different[at % len(different)] for at in range(LAYERS)]
