"""ResNet: from its config.json and its tensors to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

from models.image_heads import classifier, image_architectures
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import conv_norm_rows

_BLOCK = "encoder.stages.{s}.layers.{b}"
_BACKBONE = Backbone(
    "resnet.",
    (
        *conv_norm_rows("embedder.embedder", "stem"),
        *conv_norm_rows(f"{_BLOCK}.shortcut", "stages.{s}.{b}.shortcut"),
        *conv_norm_rows(f"{_BLOCK}.layer.{{c}}", "stages.{s}.{b}.layers.{c}"),
    ),
)


def _read(fields: Fields) -> Mapping[str, Any]:
    fields.refuse("layer_type", "basic", "bottleneck", why="choose basic or bottleneck")
    return {
        "bottleneck": fields.text("layer_type") == "bottleneck",
        "first_stage_stride": 2 if fields.flag("downsample_in_first_stage") else 1,
    }


ARCHITECTURES = image_architectures(
    "ResNet",
    "resnet",
    ResNetConfig(),
    ResNet,
    _BACKBONE,
    classifier("classifier.1"),
    read=_read,
)
