"""Key table of BART: the tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Iterator

from models.weights.rows import FAIRSEQ_BLOCK, attention_rows, block_rows, norm_rows
from models.weights.table import KeyTable, Row, row

BIAS = "final_logits_bias"
TABLE = "model.shared.weight"
_COPIES = (
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


def _stack(stack: str) -> Iterator[Row]:
    key, ours = f"model.{stack}.layers.{{i}}", f"{stack}.blocks.{{i}}"
    yield row(f"model.{stack}.embed_positions.weight", f"{stack}.position.table")
    yield from norm_rows(f"model.{stack}.layernorm_embedding", f"{stack}.embedding_norm")
    yield from block_rows(key, ours, FAIRSEQ_BLOCK)
    if stack == "decoder":
        yield from attention_rows(f"{key}.encoder_attn", f"{ours}.cross_attention")
        yield from norm_rows(f"{key}.encoder_attn_layer_norm", f"{ours}.cross_norm")


KEYS = KeyTable(
    (row(TABLE, "embedding.table"), *_stack("encoder"), *_stack("decoder")),
    renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),  # saved without the head
    ignored=(r"model\.(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight", BIAS),
    substitutes=tuple((TABLE, copy) for copy in _COPIES),
)
