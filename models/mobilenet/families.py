"""MobileNetV2: from its config.json and its tensors to the model. Defaults are those of
transformers."""

from models.image_heads import classifier, image_architectures, segmenter
from models.mobilenet.config import MobileNetConfig
from models.mobilenet.model import MobileNet
from models.weights.backbone import Backbone
from models.weights.rows import conv_norm_rows, inverted_rows

_BACKBONE = Backbone(
    "mobilenet_v2.",
    (
        *conv_norm_rows("conv_stem.first_conv", "stem.first"),
        *inverted_rows("conv_stem", "stem"),
        *inverted_rows("layer.{i}", "blocks.{i}"),
        *conv_norm_rows("conv_1x1", "last"),
    ),
)
ARCHITECTURES = image_architectures(
    "MobileNetV2",
    "mobilenet_v2",
    MobileNetConfig(),
    MobileNet,
    _BACKBONE,
    {**classifier(), **segmenter("conv_pool", "conv_aspp", "conv_projection", number="0")},
)
