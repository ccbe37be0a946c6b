"""EfficientNet: from its config.json and its tensors to the model. Defaults are those of
transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from models.efficientnet.config import EfficientNetConfig
from models.efficientnet.model import EfficientNet
from models.image_heads import classifier, image_architectures
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import batch_norm_rows, dense_rows
from models.weights.table import Row, row
from models.weights.transforms import CONV_2D, POINTWISE

_BLOCK, _OURS = "encoder.blocks.{i}", "blocks.{i}"
_LAYERS = (  # a convolution and its norm, and what they are here
    ("embeddings.convolution", "embeddings.batchnorm", "stem"),
    (f"{_BLOCK}.expansion.expand_conv", f"{_BLOCK}.expansion.expand_bn", f"{_OURS}.expand"),
    (
        f"{_BLOCK}.depthwise_conv.depthwise_conv",
        f"{_BLOCK}.depthwise_conv.depthwise_norm",
        f"{_OURS}.depthwise",
    ),
    (f"{_BLOCK}.projection.project_conv", f"{_BLOCK}.projection.project_bn", f"{_OURS}.reduce"),
    ("encoder.top_conv", "encoder.top_bn", "last"),
)


def _rows() -> Iterator[Row]:
    for conv, norm, parameter in _LAYERS:
        yield row(f"{conv}.weight", f"{parameter}.convolution.kernel", CONV_2D)
        yield from batch_norm_rows(norm, f"{parameter}.norm")
    for name in ("reduce", "expand"):
        key = f"{_BLOCK}.squeeze_excite.{name}"
        yield from dense_rows(key, f"{_OURS}.squeeze.{name}", POINTWISE)


def _read(fields: Fields) -> Mapping[str, Any]:
    fields.refuse("pooling_type", "mean", why="only the mean of places is supported")
    return {}


ARCHITECTURES = image_architectures(
    "EfficientNet",
    "efficientnet",
    EfficientNetConfig(),
    EfficientNet,
    Backbone("efficientnet.", tuple(_rows())),
    classifier(),
    read=_read,
)
