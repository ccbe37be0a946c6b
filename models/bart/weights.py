"""Key table of BART: the tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Iterator

from models.bart.config import BartConfig
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import FLAT, KERNEL, OUTPUT_KERNEL

BIAS = "final_logits_bias"
TABLE = "model.shared.weight"
_COPIES = (
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


def _attention(theirs: str, ours: str) -> Iterator[Row]:
    for key, name in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        yield from dense_rows(f"{theirs}.{key}", f"{ours}.{name}", KERNEL, FLAT)
    yield from dense_rows(f"{theirs}.out_proj", f"{ours}.output", OUTPUT_KERNEL)


def _stack(stack: str) -> Iterator[Row]:
    key, ours = f"model.{stack}.layers.{{i}}", f"{stack}.blocks.{{i}}"
    yield row(f"model.{stack}.embed_positions.weight", f"{stack}.position.table")
    yield from norm_rows(f"model.{stack}.layernorm_embedding", f"{stack}.embedding_norm")
    yield from _attention(f"{key}.self_attn", f"{ours}.attention")
    yield from norm_rows(f"{key}.self_attn_layer_norm", f"{ours}.attention_norm")
    if stack == "decoder":
        yield from _attention(f"{key}.encoder_attn", f"{ours}.cross_attention")
        yield from norm_rows(f"{key}.encoder_attn_layer_norm", f"{ours}.cross_norm")
    yield from dense_rows(f"{key}.fc1", f"{ours}.mlp.up")
    yield from dense_rows(f"{key}.fc2", f"{ours}.mlp.down")
    yield from norm_rows(f"{key}.final_layer_norm", f"{ours}.mlp_norm")


_TABLE = KeyTable(
    (row(TABLE, "embedding.table"), *_stack("encoder"), *_stack("decoder")),
    renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),  # saved without the head
    ignored=(r"model\.(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight", BIAS),
    substitutes=tuple((TABLE, copy) for copy in _COPIES),
)


def key_table(config: BartConfig) -> KeyTable:
    """The table, the same for every config."""
    return _TABLE
