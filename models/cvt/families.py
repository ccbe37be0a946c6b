"""CvT: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

from models.cvt.config import DEPTHWISE, CvtConfig
from models.cvt.model import Cvt
from models.cvt.weights import key_table
from models.image_heads import image_architectures
from models.weights.fields import Fields


def _read(fields: Fields) -> Mapping[str, Any]:
    if set(fields.texts("qkv_projection_method")) != {DEPTHWISE}:
        raise fields.fail("qkv_projection_method", f"only {DEPTHWISE} is supported, in every stage")
    return {}


ARCHITECTURES = image_architectures(
    "Cvt",
    "cvt",
    CvtConfig(),
    Cvt,
    key_table,
    read=_read,
    defaults={"qkv_projection_method": [DEPTHWISE] * 3},
)
