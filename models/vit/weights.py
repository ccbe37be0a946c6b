"""Key table of vision transformers: tensors of Hugging Face checkpoints and their parameters."""

from models.vit.config import ViTConfig
from models.weights.backbone import Backbone
from models.weights.rows import (
    FILE_BLOCK,
    MEMORY_BLOCK,
    BlockNames,
    block_rows,
    dense_rows,
    norm_rows,
)
from models.weights.table import Row, row
from models.weights.transforms import CONV_2D

_BLOCK = "blocks.{i}"


def _layer(layer: str, names: BlockNames, bias: str) -> tuple[Row, ...]:
    """The rows of one block, by the names of its parts."""
    return (
        *block_rows(layer, _BLOCK, names),
        row(f"{layer}.lambda_1", f"{_BLOCK}.attention_scale"),
        row(f"{layer}.lambda_2", f"{_BLOCK}.mlp_scale"),
        row(f"{layer}.{bias}.relative_position_bias_table", "relative.{i}.table"),
    )


_FILE_LAYER = _layer("encoder.layer.{i}", FILE_BLOCK, "attention.attention.relative_position_bias")
_MEMORY_LAYER = _layer("layers.{i}", MEMORY_BLOCK, "relative_position_bias")

_BODY: tuple[Row, ...] = (
    row("embeddings.cls_token", "class_token"),
    row("embeddings.distillation_token", "distillation_token"),
    row("embeddings.position_embeddings", "positions"),
    *dense_rows("embeddings.patch_embeddings.projection", "patches", CONV_2D),
    *_FILE_LAYER,
    *_MEMORY_LAYER,
    *(
        row(f"{key}.relative_position_bias_table", "shared_relative.table")
        for key in ("encoder.relative_position_bias", "shared_position_bias")
    ),
)


def body_rows(norm: str | None = "layernorm") -> tuple[Row, ...]:
    """Everything but heads; `norm` is what the last norm is called, if there is one."""
    norms = () if norm is None else norm_rows(norm, "norm")
    return (*_BODY, *norms, *dense_rows("pooler.dense", "pooler"))


def backbone(prefix: str, config: ViTConfig) -> Backbone:
    """The rows of one config. A pooler that the model does not have may be stored, and so may the
    token of masked patches."""
    is_mean = config.pooling == "mean"
    norm = None if config.pooling == "none" else "layernorm"
    unread = () if is_mean or config.pooler_dim is not None else (r".*pooler\..*",)
    return Backbone(
        prefix,
        body_rows("pooler.layernorm" if is_mean else norm),
        (r".*(embeddings\.mask_token|relative_position_index)", *unread),
    )
