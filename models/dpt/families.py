"""DPT: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.dpt.config import DPTConfig
from models.dpt.model import DPT
from models.dpt.stem import STRIDE, StemConfig
from models.dpt.weights import backbone_table, key_table
from models.published.defaults import DEFAULTS, Defaults
from models.settings import read_model, read_settings, write_settings
from models.vit.config import ViTConfig
from models.vit.families import read_pooler
from models.vit.model import ViT
from models.weights.fields import Fields, count_labels

_BACKBONE = ViTConfig(image_size=(384, 384))


def _read(task: str, fields: Fields) -> Mapping[str, Any]:
    is_hybrid = fields.flag("is_hybrid", False)
    _refuse_other_backbones(fields, hybrids=True)
    stem = _stem(fields) if is_hybrid else None
    has_norms = fields.flag("use_batch_norm_in_fusion_residual")
    return {
        "backbone": _backbone(fields, stem),
        "stem": stem,
        "fusion_bias": fields.flag("use_bias_in_fusion_residual", not has_norms),
        "num_labels": count_labels(fields) if task == "image-segmentation" else None,
    }


def _features(fields: Fields) -> Mapping[str, Any]:
    _refuse_other_backbones(fields)
    return read_pooler(fields)


def _stem(fields: Fields) -> StemConfig:
    """The convolutions of a hybrid."""
    nested = fields.object("backbone_config", Fields({}, fields.where))
    padding = nested.text("global_padding", "SAME").upper()
    known = Fields({**nested.values, "global_padding": padding}, nested.where)
    known.refuse_others(DEFAULTS["bit"].fixed)
    stages = len(known.integers("depths", StemConfig().depths))
    channels = list(known.integers("hidden_sizes", StemConfig().stage_channels))[:stages]
    values = Fields({**known.values, "hidden_sizes": channels}, nested.where)
    return StemConfig(
        **read_settings(StemConfig, values.of_family(Defaults(write_settings(StemConfig()))))
    )


def _backbone(fields: Fields, stem: StemConfig | None) -> ViTConfig:
    """The transformer, which takes the last feature map of a stem for its pixels."""
    config = read_model(ViTConfig, fields)
    if stem is None:
        return config
    if config.patch_size != (STRIDE, STRIDE) or any(size % STRIDE for size in config.image_size):
        raise fields.fail(
            "patch_size", f"it must be {STRIDE}, of which the image size is a multiple"
        )
    grid = config.image_size[0] // STRIDE, config.image_size[1] // STRIDE
    return replace(config, image_size=grid, patch_size=(1, 1), num_channels=stem.stage_channels[-1])


def _refuse_other_backbones(fields: Fields, *, hybrids: bool = False) -> None:
    names = ("backbone", *(() if hybrids else ("is_hybrid",)))
    if not fields.flag("is_hybrid", False):
        names += ("backbone_config",)
    for name in names:
        fields.refuse(name, False, why="only a ViT backbone in the same checkpoint is supported")


ARCHITECTURES = (
    Architecture.of(
        "DPTModel",
        _BACKBONE,
        ViT,
        backbone_table,
        family="dpt",
        task="image-feature-extraction",
        read=_features,
    ),
    *(
        Architecture.of(
            f"DPTFor{ending}",
            DPTConfig(),
            DPT,
            key_table,
            task=task,
            read=partial(_read, task),
            parts=(_BACKBONE,),
        )
        for ending, task in (
            ("DepthEstimation", "depth-estimation"),
            ("SemanticSegmentation", "image-segmentation"),
        )
    ),
)
