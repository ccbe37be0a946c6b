"""Key table of ModernBERT: the tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Mapping

from models.modernbert.config import ModernBertConfig
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.text_heads import HeadKeys
from models.weights.transforms import FLAT, KERNEL, OUTPUT_KERNEL, Fused

_KEY, _BLOCK = "layers.{i}", "blocks.{i}"
_HEADS = [f"{_BLOCK}.attention.{name}" for name in ("query", "key", "value")]
_GATED = [f"{_BLOCK}.mlp.{name}" for name in ("gate", "up")]

_ENCODER: tuple[Row, ...] = (
    row("embeddings.tok_embeddings.weight", "embedding.table"),
    *norm_rows("embeddings.norm", "embedding_norm"),
    row(f"{_KEY}.attn.Wqkv.weight", [f"{name}.kernel" for name in _HEADS], Fused(KERNEL)),
    row(f"{_KEY}.attn.Wqkv.bias", [f"{name}.bias" for name in _HEADS], Fused(FLAT)),
    *dense_rows(f"{_KEY}.attn.Wo", f"{_BLOCK}.attention.output", OUTPUT_KERNEL),
    *norm_rows(f"{_KEY}.attn_norm", f"{_BLOCK}.attention_norm"),
    row(f"{_KEY}.mlp.Wi.weight", [f"{name}.kernel" for name in _GATED], Fused(KERNEL)),
    row(f"{_KEY}.mlp.Wi.bias", [f"{name}.bias" for name in _GATED], Fused(FLAT)),
    *dense_rows(f"{_KEY}.mlp.Wo", f"{_BLOCK}.mlp.down"),
    *norm_rows(f"{_KEY}.mlp_norm", f"{_BLOCK}.mlp_norm"),
    *norm_rows("final_norm", "norm"),
)

_LABELS = HeadKeys(transform="head.dense", norm="head.norm", output="classifier")
_HEAD_KEYS: Mapping[str, HeadKeys] = {
    "feature-extraction": HeadKeys(),
    "fill-mask": HeadKeys(
        transform="head.dense", norm="head.norm", vocab_bias="decoder.bias", table="decoder"
    ),
}


HEADS = (r"(head|decoder|classifier)\..*",)


def key_table(config: ModernBertConfig) -> KeyTable:
    """The table for one config: encoders alone are stored without a prefix."""
    head = _HEAD_KEYS.get(config.head.task, _LABELS)
    alone = config.head.task == "feature-extraction"
    prefix = "" if alone else "model."
    return KeyTable(
        (*prefixed(prefix, _ENCODER), *head.rows(prefix)),
        ((r"^model\.", ""),) if alone else ((r"^(embeddings|layers|final_norm)\.", r"model.\1."),),
        (r".*rotary_emb\..*inv_freq", *head.repeated(), *(HEADS if alone else ())),
    )
