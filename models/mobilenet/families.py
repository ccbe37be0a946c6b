"""MobileNetV2: from its config.json and its tensors to the model. Defaults are those of
transformers."""

from models.image_heads import Head, classifier, image_architectures
from models.mobilenet.config import MobileNetConfig
from models.mobilenet.model import MobileNet
from models.weights.backbone import Backbone
from models.weights.rows import conv_norm_rows, dense_rows, inverted_rows
from models.weights.transforms import POINTWISE

_BACKBONE = Backbone(
    "mobilenet_v2.",
    (
        *conv_norm_rows("conv_stem.first_conv", "stem.first"),
        *inverted_rows("conv_stem", "stem"),
        *inverted_rows("layer.{i}", "blocks.{i}"),
        *conv_norm_rows("conv_1x1", "last"),
    ),
)
_THEIRS = "segmentation_head"
_SEGMENTER = Head(
    (
        *conv_norm_rows(f"{_THEIRS}.conv_pool", "segmentation.pool"),
        *conv_norm_rows(f"{_THEIRS}.conv_aspp", "segmentation.windows.0"),
        *conv_norm_rows(f"{_THEIRS}.conv_projection", "segmentation.projection"),
        *dense_rows(f"{_THEIRS}.classifier.convolution", "segmentation.classifier", POINTWISE),
    ),
    settings={"segments": True},
)

ARCHITECTURES = image_architectures(
    "MobileNetV2",
    "mobilenet_v2",
    MobileNetConfig(),
    MobileNet,
    _BACKBONE,
    {**classifier(), "ForSemanticSegmentation": _SEGMENTER},
    family="mobilenet",
)
