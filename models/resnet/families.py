"""ResNet: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

from models.image_heads import image_architectures
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from models.resnet.weights import key_table
from models.weights.fields import Fields


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
    key_table,
    read=_read,
    defaults={"layer_type": "bottleneck", "downsample_in_first_stage": False},
)
