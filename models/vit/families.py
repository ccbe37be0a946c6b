"""ViT, DeiT and BEiT: from their config.json and key table to the common model.

The config's defaults are those of transformers for fields that a file leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.image_heads import Head, classifier, image_architectures
from models.vit.config import ViTConfig
from models.vit.model import ViT
from models.vit.weights import backbone
from models.weights.fields import Fields
from models.weights.rows import dense_rows


def read_pooler(fields: Fields) -> Mapping[str, Any]:
    """The settings of the pooler, which the backbone alone has."""
    return {
        "pooler_dim": fields.positive("pooler_output_size", fields.positive("hidden_size")),
        "pooler_act": fields.text("pooler_act", "tanh"),
    }


def _deit(fields: Fields) -> Mapping[str, Any]:
    return {**read_pooler(fields), "distilled": True}


def _beit(fields: Fields) -> Mapping[str, Any]:
    scale = fields.number("layer_scale_init_value")
    return {
        "qkv_bias": True,
        "key_bias": False,
        "absolute_positions": fields.flag("use_absolute_position_embeddings"),
        "relative_positions": fields.flag("use_relative_position_bias"),
        "shared_positions": fields.flag("use_shared_relative_position_bias"),
        "layer_scale": scale if scale > 0 else None,
        "pooling": "mean" if fields.flag("use_mean_pooling") else "first",
    }


def _without_missing_pooler(config: ViTConfig, tensors: Mapping[str, Any]) -> ViTConfig:
    """Some backbones, such as DINO's, were saved without a pooler, and no field says so."""
    has_pooler = any("pooler." in name for name in tensors)
    if has_pooler:
        return config
    pooling = "none" if config.pooling == "mean" else config.pooling  # its norm is the pooler's
    return replace(config, pooler_dim=None, pooling=pooling)


_NO_POOLER = {"pooler_dim": None}
_CLASSIFIER = classifier(settings=_NO_POOLER)
_TWO_CLASSIFIERS = Head(
    (
        *dense_rows("cls_classifier", "classifier"),
        *dense_rows("distillation_classifier", "distilled_classifier"),
    ),
    settings={**_NO_POOLER, "distilled_classifier": True},
)
_architectures = partial(
    image_architectures, config=ViTConfig(), model=ViT, refine=_without_missing_pooler
)

ARCHITECTURES = (
    *_architectures(
        "ViT", "vit", backbone=partial(backbone, "vit."), heads=_CLASSIFIER, read=read_pooler
    ),
    *_architectures(
        "DeiT",
        "deit",
        backbone=partial(backbone, "deit."),
        heads={**_CLASSIFIER, "ForImageClassificationWithTeacher": _TWO_CLASSIFIERS},
        read=_deit,
    ),
    *_architectures(
        "Beit",
        "beit",
        backbone=partial(backbone, "beit."),
        heads=_CLASSIFIER,
        read=_beit,
    ),
)
