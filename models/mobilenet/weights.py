"""Key table of MobileNetV2: the tensors of Hugging Face checkpoints and their parameters."""

from models.mobilenet.config import MobileNetConfig
from models.weights.backbone import backbone_table
from models.weights.rows import conv_norm_rows, dense_rows
from models.weights.table import KeyTable
from models.weights.transforms import POINTWISE

_PARTS = (("expand_1x1", "expand"), ("conv_3x3", "depthwise"), ("reduce_1x1", "reduce"))
_BODY = (
    *conv_norm_rows("conv_stem.first_conv", "stem.first"),
    *(
        row
        for theirs, ours in (("conv_stem", "stem"), ("layer.{i}", "blocks.{i}"))
        for part, name in _PARTS
        for row in conv_norm_rows(f"{theirs}.{part}", f"{ours}.{name}")
    ),
    *conv_norm_rows("conv_1x1", "last"),
)
_CLASSIFIER = tuple(dense_rows("classifier", "classifier"))
_SEGMENTATION = (
    *(
        row
        for part, name in (("pool", "pool"), ("aspp", "place"), ("projection", "projection"))
        for row in conv_norm_rows(f"segmentation_head.conv_{part}", f"segmentation.{name}")
    ),
    *dense_rows("segmentation_head.classifier.convolution", "segmentation.classifier", POINTWISE),
)


def key_table(config: MobileNetConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have a prefix."""
    head = _SEGMENTATION if config.segments else _CLASSIFIER
    return backbone_table(
        "mobilenet_v2.",
        _BODY,
        None if config.num_labels is None else head,
        unread=r"(classifier|segmentation_head)\..*",
        ignored=(r".*\.num_batches_tracked",),
    )
