"""Key table of ModernBERT: the tensors of Hugging Face checkpoints and their parameters."""

from models.modernbert.config import ModernBertConfig
from models.weights.backbone import Backbone
from models.weights.rows import dense_rows, fused_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.text_heads import HeadKeys
from models.weights.transforms import OUTPUT_KERNEL

_KEY, _BLOCK = "layers.{i}", "blocks.{i}"
_HEADS = [f"{_BLOCK}.attention.{name}" for name in ("query", "key", "value")]
_GATED = [f"{_BLOCK}.mlp.{name}" for name in ("gate", "up")]

_ENCODER: tuple[Row, ...] = (
    row("embeddings.tok_embeddings.weight", "embedding.table"),
    *norm_rows("embeddings.norm", "embedding_norm"),
    *fused_rows(f"{_KEY}.attn.Wqkv", _HEADS),
    *dense_rows(f"{_KEY}.attn.Wo", f"{_BLOCK}.attention.output", OUTPUT_KERNEL),
    *norm_rows(f"{_KEY}.attn_norm", f"{_BLOCK}.attention_norm"),
    *fused_rows(f"{_KEY}.mlp.Wi", _GATED),
    *dense_rows(f"{_KEY}.mlp.Wo", f"{_BLOCK}.mlp.down"),
    *norm_rows(f"{_KEY}.mlp_norm", f"{_BLOCK}.mlp_norm"),
    *norm_rows("final_norm", "norm"),
)

_BACKBONE = Backbone("model.", _ENCODER, (r".*rotary_emb\..*inv_freq",))
_LABELS = HeadKeys(transform="head.dense", norm="head.norm", output="classifier")
_TOKENS = HeadKeys(
    transform="head.dense", norm="head.norm", vocab_bias="decoder.bias", table="decoder"
)


def key_table(config: ModernBertConfig) -> KeyTable:
    """The table for one config."""
    if config.head.task == "feature-extraction":
        return _BACKBONE.table(None, [*_LABELS.rows(""), *_TOKENS.rows("")])
    head = _TOKENS if config.head.task == "fill-mask" else _LABELS
    return _BACKBONE.table(tuple(head.rows("")), ignored=tuple(head.repeated()))
