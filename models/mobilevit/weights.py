"""Key table of MobileViT: the tensors of Hugging Face checkpoints and their parameters."""

from models.mobilevit.config import CONVOLUTIONS, TRANSFORMERS, MobileViTConfig
from models.weights.backbone import backbone_table
from models.weights.rows import (
    FILE_BLOCK,
    block_rows,
    conv_norm_rows,
    dense_rows,
    norm_rows,
)
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import CONV_2D, POINTWISE

_PARTS = (("expand_1x1", "expand"), ("conv_3x3", "depthwise"), ("reduce_1x1", "reduce"))


def _inverted(theirs: str, ours: str) -> tuple[Row, ...]:
    return tuple(
        line
        for part, name in _PARTS
        for line in conv_norm_rows(f"{theirs}.{part}", f"{ours}.{name}")
    )


def _transformer(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        *_inverted(f"{theirs}.downsampling_layer", f"{ours}.shrink"),
        *conv_norm_rows(f"{theirs}.conv_kxk", f"{ours}.before"),
        row(f"{theirs}.conv_1x1.convolution.weight", f"{ours}.widen.kernel", CONV_2D),
        *block_rows(f"{theirs}.transformer.layer.{{i}}", f"{ours}.blocks.{{i}}", FILE_BLOCK),
        *norm_rows(f"{theirs}.layernorm", f"{ours}.norm"),
        *conv_norm_rows(f"{theirs}.conv_projection", f"{ours}.projection"),
        *conv_norm_rows(f"{theirs}.fusion", f"{ours}.fusion"),
    )


_BODY = (
    *conv_norm_rows("conv_stem", "stem"),
    *(
        line
        for i in range(len(CONVOLUTIONS))
        for line in _inverted(f"encoder.layer.{i}.layer.{{b}}", f"convolutions.{i}.{{b}}")
    ),
    *(
        line
        for i in range(len(TRANSFORMERS))
        for line in _transformer(f"encoder.layer.{i + len(CONVOLUTIONS)}", f"transformers.{i}")
    ),
    *conv_norm_rows("conv_1x1_exp", "last"),
)
_ASPP = "segmentation_head.aspp"
_SEGMENTATION = (
    *conv_norm_rows(f"{_ASPP}.convs.4.conv_1x1", "segmentation.pool"),
    *conv_norm_rows(f"{_ASPP}.convs.{{i}}", "segmentation.windows.{i}"),
    *conv_norm_rows(f"{_ASPP}.project", "segmentation.projection"),
    *dense_rows("segmentation_head.classifier.convolution", "segmentation.classifier", POINTWISE),
)


def key_table(config: MobileViTConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have a prefix."""
    head = _SEGMENTATION if config.segments else dense_rows("classifier", "classifier")
    return backbone_table(
        "mobilevit.",
        _BODY,
        None if config.num_labels is None else head,
        unread=r"(classifier|segmentation_head)\..*",
        ignored=(r".*\.num_batches_tracked",),
    )
