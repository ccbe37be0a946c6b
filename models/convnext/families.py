"""ConvNeXt and ConvNeXt V2: from config.json and tensors to the model. Defaults are those of
transformers."""

from collections.abc import Mapping
from typing import Any

from models.convnext.config import ConvNextConfig
from models.convnext.model import ConvNext
from models.image_heads import classifier, image_architectures
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import row
from models.weights.transforms import CONV_2D, Leading

_THEIRS, _OURS = "encoder.stages.{s}", "stages.{s}"
_THEIR_BLOCK, _OUR_BLOCK = f"{_THEIRS}.layers.{{b}}", f"{_OURS}.blocks.{{b}}"
_ROWS = (
    *dense_rows("embeddings.patch_embeddings", "patches", CONV_2D),
    *norm_rows("embeddings.layernorm", "patch_norm"),
    *norm_rows(f"{_THEIRS}.downsampling_layer.0", f"{_OURS}.norm"),
    *dense_rows(f"{_THEIRS}.downsampling_layer.1", f"{_OURS}.resize", CONV_2D),
    *dense_rows(f"{_THEIR_BLOCK}.dwconv", f"{_OUR_BLOCK}.depthwise", CONV_2D),
    *norm_rows(f"{_THEIR_BLOCK}.layernorm", f"{_OUR_BLOCK}.norm"),
    *dense_rows(f"{_THEIR_BLOCK}.pwconv1", f"{_OUR_BLOCK}.up"),
    row(f"{_THEIR_BLOCK}.grn.weight", f"{_OUR_BLOCK}.response_norm.scale", Leading(3)),
    row(f"{_THEIR_BLOCK}.grn.bias", f"{_OUR_BLOCK}.response_norm.bias", Leading(3)),
    *dense_rows(f"{_THEIR_BLOCK}.pwconv2", f"{_OUR_BLOCK}.down"),
    row(f"{_THEIR_BLOCK}.layer_scale_parameter", f"{_OUR_BLOCK}.layer_scale"),
    *norm_rows("layernorm", "norm"),
)


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


ARCHITECTURES = (
    *image_architectures(
        "ConvNext",
        "convnext",
        ConvNextConfig(),
        ConvNext,
        Backbone("convnext.", _ROWS),
        classifier(),
        read=_first,
    ),
    *image_architectures(
        "ConvNextV2",
        "convnextv2",
        ConvNextConfig(),
        ConvNext,
        Backbone("convnextv2.", _ROWS),
        classifier(),
        read=_second,
    ),
)
