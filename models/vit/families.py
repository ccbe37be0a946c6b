"""Vision transformers: from config.json and tensors to the model."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.image_heads import Head, classifier, image_architectures
from models.vit.config import ViTConfig
from models.vit.model import ViT
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import (
    FILE_BLOCK,
    MEMORY_BLOCK,
    BlockNames,
    block_rows,
    dense_rows,
    norm_rows,
)
from models.weights.table import Row, row
from models.weights.transforms import CONV_2D

_BLOCK = "blocks.{i}"


def _layer(layer: str, names: BlockNames, bias: str) -> tuple[Row, ...]:
    """The rows of one block, by the names of its parts."""
    return (
        *block_rows(layer, _BLOCK, names),
        row(f"{layer}.lambda_1", f"{_BLOCK}.attention_scale"),
        row(f"{layer}.lambda_2", f"{_BLOCK}.mlp_scale"),
        row(f"{layer}.{bias}.relative_position_bias_table", "relative.{i}.table"),
    )


_FILE_LAYER = _layer("encoder.layer.{i}", FILE_BLOCK, "attention.attention.relative_position_bias")
_MEMORY_LAYER = _layer("layers.{i}", MEMORY_BLOCK, "relative_position_bias")

_BODY: tuple[Row, ...] = (
    row("embeddings.cls_token", "class_token"),
    row("embeddings.distillation_token", "distillation_token"),
    row("embeddings.position_embeddings", "positions"),
    *dense_rows("embeddings.patch_embeddings.projection", "patches", CONV_2D),
    *_FILE_LAYER,
    *_MEMORY_LAYER,
    *(
        row(f"{key}.relative_position_bias_table", "shared_relative.table")
        for key in ("encoder.relative_position_bias", "shared_position_bias")
    ),
)


def body_rows(norm: str | None = "layernorm") -> tuple[Row, ...]:
    """Everything but heads; `norm` is what the last norm is called, if there is one."""
    norms = () if norm is None else norm_rows(norm, "norm")
    return (*_BODY, *norms, *dense_rows("pooler.dense", "pooler"))


def backbone(prefix: str, config: ViTConfig) -> Backbone:
    """The rows of one config. A pooler that the model does not have may be stored, and so may the
    token of masked patches."""
    is_mean = config.pooling == "mean"
    norm = None if config.pooling == "none" else "layernorm"
    unread = () if is_mean or config.pooler_dim is not None else (r".*pooler\..*",)
    return Backbone(
        prefix,
        body_rows("pooler.layernorm" if is_mean else norm),
        (r".*(embeddings\.mask_token|relative_position_index)", *unread),
    )


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
