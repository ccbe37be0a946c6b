"""Swin and Donut's encoder: from config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.image_heads import image_architectures
from models.swin.config import SwinConfig
from models.swin.model import Swin
from models.swin.weights import key_table
from models.weights.fields import Fields


def _donut(fields: Fields) -> Mapping[str, Any]:
    fields.refuse(
        "use_absolute_embeddings",
        False,
        why="Donut's encoder has no absolute position embeddings",
    )
    return {"final_norm": False}


ARCHITECTURES = (
    *image_architectures("Swin", "swin", SwinConfig(), Swin, partial(key_table, "swin.")),
    *image_architectures(
        "DonutSwin",
        "donut-swin",
        SwinConfig(),
        Swin,
        partial(key_table, "donut."),
        family="swin",
        read=_donut,
    ),
)
