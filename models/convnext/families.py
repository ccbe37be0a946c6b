"""ConvNeXt and ConvNeXt V2: from config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.convnext.config import ConvNextConfig
from models.convnext.model import ConvNext
from models.convnext.weights import key_table
from models.image_heads import image_architectures
from models.weights.fields import Fields


def _stages(fields: Fields) -> None:
    stages, depths = fields.positive("num_stages"), fields.integers("depths")
    if stages != len(depths):
        raise fields.fail("num_stages", f"depths has {len(depths)} stages")


def _first(fields: Fields) -> Mapping[str, Any]:
    _stages(fields)
    return {"layer_scale": fields.number("layer_scale_init_value") > 0}


def _second(fields: Fields) -> Mapping[str, Any]:
    _stages(fields)
    return {"layer_scale": False, "response_norm": True}


_STAGES: Mapping[str, Any] = {"num_stages": 4}

ARCHITECTURES = (
    *image_architectures(
        "ConvNext",
        "convnext",
        ConvNextConfig(),
        ConvNext,
        partial(key_table, "convnext"),
        read=_first,
        defaults={**_STAGES, "layer_scale_init_value": 1e-6},
    ),
    *image_architectures(
        "ConvNextV2",
        "convnextv2",
        ConvNextConfig(),
        ConvNext,
        partial(key_table, "convnextv2"),
        family="convnext",
        read=_second,
        defaults=_STAGES,
    ),
)
