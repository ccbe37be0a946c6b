"""Key table of vision transformers: tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Sequence

from models.vit.config import ViTConfig
from models.weights.rows import norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, FLAT, KERNEL, OUTPUT_KERNEL

_BLOCK = "blocks.{i}"
_ATTENTION, _MLP = f"{_BLOCK}.attention", f"{_BLOCK}.mlp"


def _layer(
    layer: str, heads: Sequence[str], output: str, up: str, down: str, bias: str
) -> tuple[Row, ...]:
    """The rows of one block, by the names of its parts; heads: queries, keys, values."""
    named = list(zip(heads, ("query", "key", "value"), strict=True))
    return (
        *(row(f"{layer}.{h}.weight", f"{_ATTENTION}.{ours}.kernel", KERNEL) for h, ours in named),
        *(row(f"{layer}.{h}.bias", f"{_ATTENTION}.{ours}.bias", FLAT) for h, ours in named),
        row(f"{layer}.{output}.weight", f"{_ATTENTION}.output.kernel", OUTPUT_KERNEL),
        row(f"{layer}.{output}.bias", f"{_ATTENTION}.output.bias"),
        row(f"{layer}.{up}.weight", f"{_MLP}.up.kernel", KERNEL),
        row(f"{layer}.{up}.bias", f"{_MLP}.up.bias"),
        row(f"{layer}.{down}.weight", f"{_MLP}.down.kernel", KERNEL),
        row(f"{layer}.{down}.bias", f"{_MLP}.down.bias"),
        row(f"{layer}.lambda_1", f"{_BLOCK}.attention_scale"),
        row(f"{layer}.lambda_2", f"{_BLOCK}.mlp_scale"),
        row(f"{layer}.{bias}.relative_position_bias_table", "relative.{i}.table"),
        row(f"{layer}.layernorm_before.weight", f"{_BLOCK}.attention_norm.scale"),
        row(f"{layer}.layernorm_before.bias", f"{_BLOCK}.attention_norm.bias"),
        row(f"{layer}.layernorm_after.weight", f"{_BLOCK}.mlp_norm.scale"),
        row(f"{layer}.layernorm_after.bias", f"{_BLOCK}.mlp_norm.bias"),
    )


_FILE_LAYER = _layer(
    "encoder.layer.{i}",
    [f"attention.attention.{name}" for name in ("query", "key", "value")],
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
    "attention.attention.relative_position_bias",
)
# What transformers 5 holds in memory, and saves if asked to.
_MEMORY_LAYER = _layer(
    "layers.{i}",
    [f"attention.{name}_proj" for name in "qkv"],
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
    "relative_position_bias",
)

_BODY: tuple[Row, ...] = (
    row("embeddings.cls_token", "class_token"),
    row("embeddings.distillation_token", "distillation_token"),
    row("embeddings.position_embeddings", "positions"),
    row("embeddings.patch_embeddings.projection.weight", "patches.kernel", CONV_2D),
    row("embeddings.patch_embeddings.projection.bias", "patches.bias"),
    *_FILE_LAYER,
    *_MEMORY_LAYER,
    *(
        row(f"{key}.relative_position_bias_table", "shared_relative.table")
        for key in ("encoder.relative_position_bias", "shared_position_bias")
    ),
)
_POOLER = (
    row("pooler.dense.weight", "pooler.kernel", KERNEL),
    row("pooler.dense.bias", "pooler.bias"),
)


def _head(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        row(f"{theirs}.weight", f"{ours}.kernel", KERNEL),
        row(f"{theirs}.bias", f"{ours}.bias"),
    )


CLASSIFIER = _head("classifier", "classifier")
TWO_CLASSIFIERS = (
    *_head("cls_classifier", "classifier"),
    *_head("distillation_classifier", "distilled_classifier"),
)


HEADS = r"(cls_|distillation_)?classifier\..*"


def key_table(prefix: str, heads: tuple[Row, ...], config: ViTConfig) -> KeyTable:
    """The table for one config; `prefix` is that of the backbone's keys, if a head is beside it.

    A pooler that the model does not have may be stored, and so may the token of masked patches.
    """
    has_pooler = config.pooler_dim is not None
    is_mean = config.pooling == "mean"
    norm = norm_rows("pooler.layernorm" if is_mean else "layernorm", "norm")
    body = (*_BODY, *norm, *(_POOLER if has_pooler else ()))
    unread = () if has_pooler or is_mean else (r".*pooler\..*",)
    return KeyTable(
        (*prefixed(prefix, body), *heads),
        renames=(
            (r"^(vit|deit|beit)\.", ""),
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
