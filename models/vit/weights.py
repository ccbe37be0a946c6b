"""Key table of vision transformers: tensors of Hugging Face checkpoints and their parameters."""

from models.vit.config import ViTConfig
from models.weights.rows import (
    FILE_BLOCK,
    MEMORY_BLOCK,
    BlockNames,
    block_rows,
    dense_rows,
    norm_rows,
)
from models.weights.table import KeyTable, Row, prefixed, row
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
_POOLER = tuple(dense_rows("pooler.dense", "pooler"))
CLASSIFIER = tuple(dense_rows("classifier", "classifier"))
TWO_CLASSIFIERS = (
    *dense_rows("cls_classifier", "classifier"),
    *dense_rows("distillation_classifier", "distilled_classifier"),
)


HEADS = r"((neck|head|auxiliary_head)\..*)|(cls_|distillation_)?classifier\..*"


def body_rows(*, has_pooler: bool, norm: str = "layernorm") -> tuple[Row, ...]:
    """Everything but heads; `norm` is what the last norm is called."""
    return (*_BODY, *norm_rows(norm, "norm"), *(_POOLER if has_pooler else ()))


def key_table(prefix: str, heads: tuple[Row, ...], config: ViTConfig) -> KeyTable:
    """The table for one config; `prefix` is that of the backbone's keys, if a head is beside it.

    A pooler that the model does not have may be stored, and so may the token of masked patches.
    """
    has_pooler = config.pooler_dim is not None
    is_mean = config.pooling == "mean"
    body = body_rows(has_pooler=has_pooler, norm="pooler.layernorm" if is_mean else "layernorm")
    unread = () if has_pooler or is_mean else (r".*pooler\..*",)
    return KeyTable(
        (*prefixed(prefix, body), *heads),
        renames=(
            (r"^(vit|deit|beit|dpt)\.", ""),
            (
                r"^(embeddings|encoder|layers|layernorm|pooler|shared_position_bias)\.",
                rf"{prefix}\1.",
            ),
        ),
        ignored=(
            r".*(embeddings\.mask_token|relative_position_index)",
            *unread,
            *(() if heads else (HEADS,)),
        ),
    )
