"""Key tables of decoders: the tensors of Hugging Face checkpoints and their parameters."""

import re

from models.decoder.config import DecoderConfig
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import FLAT, KERNEL, OUTPUT_KERNEL, Fused, Kernel

_KEY, _BLOCK = "model.layers.{i}", "blocks.{i}"
_ATTENTION, _MLP = f"{_BLOCK}.attention", f"{_BLOCK}.mlp"

LLAMA: tuple[Row, ...] = (
    row("model.embed_tokens.weight", "embedding.table"),
    row(f"{_KEY}.self_attn.q_proj.weight", f"{_ATTENTION}.query.kernel", KERNEL),
    row(f"{_KEY}.self_attn.k_proj.weight", f"{_ATTENTION}.key.kernel", KERNEL),
    row(f"{_KEY}.self_attn.v_proj.weight", f"{_ATTENTION}.value.kernel", KERNEL),
    row(f"{_KEY}.self_attn.o_proj.weight", f"{_ATTENTION}.output.kernel", OUTPUT_KERNEL),
    row(f"{_KEY}.self_attn.q_proj.bias", f"{_ATTENTION}.query.bias", FLAT),
    row(f"{_KEY}.self_attn.k_proj.bias", f"{_ATTENTION}.key.bias", FLAT),
    row(f"{_KEY}.self_attn.v_proj.bias", f"{_ATTENTION}.value.bias", FLAT),
    row(f"{_KEY}.self_attn.o_proj.bias", f"{_ATTENTION}.output.bias"),
    row(f"{_KEY}.self_attn.q_norm.weight", f"{_ATTENTION}.query_norm.scale"),
    row(f"{_KEY}.self_attn.k_norm.weight", f"{_ATTENTION}.key_norm.scale"),
    row(f"{_KEY}.self_attn.k_scale", f"{_ATTENTION}.cache_scales.key"),
    row(f"{_KEY}.self_attn.v_scale", f"{_ATTENTION}.cache_scales.value"),
    row(f"{_KEY}.mlp.gate_proj.weight", f"{_MLP}.gate.kernel", KERNEL),
    row(f"{_KEY}.mlp.up_proj.weight", f"{_MLP}.up.kernel", KERNEL),
    row(f"{_KEY}.mlp.down_proj.weight", f"{_MLP}.down.kernel", KERNEL),
    row(f"{_KEY}.mlp.gate_proj.bias", f"{_MLP}.gate.bias"),
    row(f"{_KEY}.mlp.up_proj.bias", f"{_MLP}.up.bias"),
    row(f"{_KEY}.mlp.down_proj.bias", f"{_MLP}.down.bias"),
    row(f"{_KEY}.input_layernorm.weight", f"{_BLOCK}.attention_norm.scale"),
    row(f"{_KEY}.post_attention_layernorm.weight", f"{_BLOCK}.mlp_norm.scale"),
    row("model.norm.weight", "norm.scale"),
    row("lm_head.weight", "head.table"),
)

PHI3 = (
    row(
        f"{_KEY}.self_attn.qkv_proj.weight",
        [f"{_ATTENTION}.{name}.kernel" for name in ("query", "key", "value")],
        Fused(KERNEL),
    ),
    row(
        f"{_KEY}.mlp.gate_up_proj.weight",
        [f"{_MLP}.{name}.kernel" for name in ("gate", "up")],
        Fused(KERNEL),
    ),
    *LLAMA,
)

GEMMA3 = (
    row(f"{_KEY}.post_attention_layernorm.weight", f"{_BLOCK}.attention_out_norm.scale"),
    row(f"{_KEY}.pre_feedforward_layernorm.weight", f"{_BLOCK}.mlp_norm.scale"),
    row(f"{_KEY}.post_feedforward_layernorm.weight", f"{_BLOCK}.mlp_out_norm.scale"),
    *LLAMA,
)

_EACH_EXPERT = Kernel(batch_axes=1)

# How transformers 5 holds the experts in memory, and saves them if asked to.
_STACKED_EXPERTS = (
    row(f"{_KEY}.mlp.gate.weight", f"{_MLP}.router", KERNEL),
    row(
        f"{_KEY}.mlp.experts.gate_up_proj",
        [f"{_MLP}.experts_gate", f"{_MLP}.experts_up"],
        Fused(_EACH_EXPERT, axis=1),
    ),
    row(f"{_KEY}.mlp.experts.down_proj", f"{_MLP}.experts_down", _EACH_EXPERT),
)

_MIXTRAL_MOE = f"{_KEY}.block_sparse_moe"
MIXTRAL = (
    row(f"{_MIXTRAL_MOE}.gate.weight", f"{_MLP}.router", KERNEL),
    row(f"{_MIXTRAL_MOE}.experts.{{e}}.w1.weight", f"{_MLP}.experts_gate", KERNEL),
    row(f"{_MIXTRAL_MOE}.experts.{{e}}.w3.weight", f"{_MLP}.experts_up", KERNEL),
    row(f"{_MIXTRAL_MOE}.experts.{{e}}.w2.weight", f"{_MLP}.experts_down", KERNEL),
    *_STACKED_EXPERTS,
    *LLAMA,
)

_QWEN_EXPERT = f"{_KEY}.mlp.experts.{{e}}"
QWEN3_MOE = (
    row(f"{_KEY}.mlp.gate.weight", f"{_MLP}.router", KERNEL),
    row(f"{_QWEN_EXPERT}.gate_proj.weight", f"{_MLP}.experts_gate", KERNEL),
    row(f"{_QWEN_EXPERT}.up_proj.weight", f"{_MLP}.experts_up", KERNEL),
    row(f"{_QWEN_EXPERT}.down_proj.weight", f"{_MLP}.experts_down", KERNEL),
    *_STACKED_EXPERTS,
    *LLAMA,
)

RENAMES = ((r"^(embed_tokens|layers|norm)\.", r"model.\1."),)  # saved without the head's prefix
IGNORED = (r".*\.rotary_emb\.inv_freq",)
TABLE, HEAD = "embed_tokens.weight", "lm_head.weight"


def key_table(rows: tuple[Row, ...], config: DecoderConfig) -> KeyTable:
    """The table of a family for one config: a tied head may be stored, but is not read."""
    if not config.tie_embeddings:
        return KeyTable(rows, RENAMES, IGNORED)
    # A tied pair may be stored as either.
    return KeyTable(rows, RENAMES, (*IGNORED, re.escape(HEAD)), ((f"model.{TABLE}", HEAD),))
