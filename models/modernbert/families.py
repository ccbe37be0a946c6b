"""ModernBERT: from its config.json and its tensors to the model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.modernbert.config import ModernBertConfig
from models.modernbert.model import ModernBert
from models.settings import layers_of_kind
from models.weights.backbone import Backbone
from models.weights.fields import Fields, count_labels
from models.weights.rotary_fields import read_rotaries
from models.weights.rows import dense_rows, fused_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.text_heads import HeadKeys
from models.weights.tied import refuse_own_head
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


POOLINGS = {"cls": "first", "mean": "mean"}


def _read(task: str, fields: Fields) -> Mapping[str, Any]:
    interval = fields.positive("global_attn_every_n_layers")
    rotary, local_rotary = read_rotaries(
        fields,
        theta=fields.positive_number("global_rope_theta"),
        local=fields.positive_number("local_rope_theta"),
    )
    return {
        "head": _head(fields, task),
        "rotary": rotary,
        "local_rotary": local_rotary,
        "local_layers": layers_of_kind(fields, lambda layer: layer % interval != 0),
        "reach": fields.positive("local_attention") // 2,
    }


def _head(fields: Fields, task: str) -> TextHeadConfig:
    if task == "fill-mask":
        refuse_own_head(fields)
    pooling = fields.text("classifier_pooling")
    if pooling not in POOLINGS:
        raise fields.fail("classifier_pooling", f"choose one of {', '.join(POOLINGS)}")
    return TextHeadConfig(
        task,
        num_labels=count_labels(fields),
        transform=task != "feature-extraction",
        act=fields.text("classifier_activation"),
        transform_bias=fields.flag("classifier_bias"),
        transform_norm=True,
        pooling=POOLINGS[pooling],
        output_bias=task != "fill-mask" or fields.flag("decoder_bias"),
    )


ARCHITECTURES = tuple(
    Architecture.of(
        f"ModernBert{suffix}",
        ModernBertConfig(),
        ModernBert,
        key_table,
        task=task,
        read=partial(_read, task),
    )
    for task, suffix in CLASSES.items()
)
