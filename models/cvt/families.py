"""CvT: from its config.json and its tensors to the model. Defaults are those of transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from models.cvt.config import DEPTHWISE, CvtConfig
from models.cvt.model import Cvt
from models.image_heads import Head, image_architectures
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import BlockNames, block_rows, conv_norm_rows, dense_rows, norm_rows
from models.weights.table import Row, row
from models.weights.transforms import CONV_2D

_PARTS = ("query", "key", "value")
_QUERY, _KEY, _VALUE = (f"attention.attention.projection_{part}" for part in _PARTS)
_HEAD = Head((*norm_rows("layernorm", "norm"), *dense_rows("classifier", "classifier")))


def _stage(theirs: str, ours: str) -> Iterator[Row]:
    tokens = f"{theirs}.embedding.convolution_embeddings"
    yield from dense_rows(f"{tokens}.projection", f"{ours}.patches", CONV_2D)
    yield from norm_rows(f"{tokens}.normalization", f"{ours}.patch_norm")
    yield row(f"{theirs}.cls_token", f"{ours}.class_token")
    layer, block = f"{theirs}.layers.{{b}}", f"{ours}.blocks.{{b}}"
    for part in _PARTS:
        key = f"{layer}.attention.attention.convolution_projection_{part}.convolution_projection"
        yield from conv_norm_rows(key, f"{block}.{part}")
    yield from block_rows(layer, block, BlockNames((_QUERY, _KEY, _VALUE)))


def _read(fields: Fields) -> Mapping[str, Any]:
    if set(fields.texts("qkv_projection_method")) != {DEPTHWISE}:
        raise fields.fail("qkv_projection_method", f"only {DEPTHWISE} is supported, in every stage")
    return {}


ARCHITECTURES = image_architectures(
    "Cvt",
    "cvt",
    CvtConfig(),
    Cvt,
    Backbone("cvt.", tuple(_stage("encoder.stages.{s}", "stages.{s}"))),
    {"ForImageClassification": _HEAD},
    read=_read,
)
