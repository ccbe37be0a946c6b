"""ViT, DeiT and BEiT: from their config.json and key table to the common model.

The config's defaults are those of transformers for fields that a file leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.vit.config import ViTConfig
from models.vit.model import ViT
from models.vit.weights import CLASSIFIER, TWO_CLASSIFIERS, key_table
from models.weights.fields import Fields, count_labels
from models.weights.table import Row


def read_vit(fields: Fields, **changes: Any) -> ViTConfig:
    """The fields that all variants share; `changes` replaces some."""
    return read_model(ViTConfig, fields, **changes)


def read_features(fields: Fields, **changes: Any) -> ViTConfig:
    return read_vit(
        fields,
        pooler_dim=fields.positive("pooler_output_size", fields.positive("hidden_size")),
        pooler_act=fields.text("pooler_act", "tanh"),
        **changes,
    )


def _classifier(fields: Fields, **changes: Any) -> ViTConfig:
    return read_vit(fields, num_labels=count_labels(fields), **changes)


def _beit(fields: Fields, *, is_classifier: bool) -> ViTConfig:
    scale = fields.number("layer_scale_init_value")
    return read_vit(
        fields,
        num_labels=count_labels(fields) if is_classifier else None,
        qkv_bias=True,
        key_bias=False,
        absolute_positions=fields.flag("use_absolute_position_embeddings"),
        relative_positions=fields.flag("use_relative_position_bias"),
        shared_positions=fields.flag("use_shared_relative_position_bias"),
        layer_scale=scale if scale > 0 else None,
        pooling="mean" if fields.flag("use_mean_pooling") else "first",
    )


def _without_missing_pooler(config: ViTConfig, tensors: Mapping[str, Any]) -> ViTConfig:
    """Some backbones, such as DINO's, were saved without a pooler, and no field says so."""
    has_pooler = any("pooler." in name for name in tensors)
    return config if has_pooler else replace(config, pooler_dim=None)


def _architecture(
    name: str,
    model_type: str,
    read_config: Any,
    prefix: str = "",
    heads: tuple[Row, ...] = (),
    **defaults: Any,
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        family="vit",
        task="image-classification" if heads else "image-feature-extraction",
        read_config=read_config,
        defaults={**write_settings(ViTConfig()), **defaults},
        model=ViT,
        keys=partial(key_table, prefix, heads),
        refine=_without_missing_pooler,
    )


_DISTILLED: dict[str, Any] = {"distilled": True}
_BEIT: dict[str, Any] = {
    "use_absolute_position_embeddings": False,
    "use_relative_position_bias": False,
    "use_shared_relative_position_bias": False,
    "layer_scale_init_value": 0.1,
    "use_mean_pooling": True,
}
_TWO_HEADS: dict[str, Any] = {"distilled": True, "distilled_classifier": True}

ARCHITECTURES = (
    _architecture("ViTModel", "vit", read_features),
    _architecture("ViTForImageClassification", "vit", _classifier, "vit.", CLASSIFIER),
    _architecture("DeiTModel", "deit", partial(read_features, **_DISTILLED)),
    _architecture(
        "DeiTForImageClassification",
        "deit",
        partial(_classifier, **_DISTILLED),
        "deit.",
        CLASSIFIER,
    ),
    _architecture(
        "DeiTForImageClassificationWithTeacher",
        "deit",
        partial(_classifier, **_TWO_HEADS),
        "deit.",
        TWO_CLASSIFIERS,
    ),
    _architecture("BeitModel", "beit", partial(_beit, is_classifier=False), **_BEIT),
    _architecture(
        "BeitForImageClassification",
        "beit",
        partial(_beit, is_classifier=True),
        "beit.",
        CLASSIFIER,
        **_BEIT,
    ),
)
