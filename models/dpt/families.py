"""DPT: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.dpt.config import DPTConfig
from models.dpt.model import DPT
from models.dpt.weights import backbone_table, key_table
from models.settings import read_model, write_settings
from models.vit.config import ViTConfig
from models.vit.families import read_pooler
from models.vit.model import ViT
from models.weights.fields import Fields, count_labels

_DEFAULTS: Mapping[str, Any] = {
    **write_settings(ViTConfig(image_size=(384, 384))),
    **write_settings(DPTConfig()),
    "use_bias_in_fusion_residual": None,
}


def _read(task: str, fields: Fields) -> Mapping[str, Any]:
    _refuse_other_backbones(fields)
    has_norms = fields.flag("use_batch_norm_in_fusion_residual")
    return {
        "backbone": read_model(ViTConfig, fields),
        "fusion_bias": fields.flag("use_bias_in_fusion_residual", not has_norms),
        "num_labels": count_labels(fields) if task == "image-segmentation" else None,
    }


def _features(fields: Fields) -> Mapping[str, Any]:
    _refuse_other_backbones(fields)
    return read_pooler(fields)


def _refuse_other_backbones(fields: Fields) -> None:
    for name in ("is_hybrid", "backbone_config", "backbone"):
        fields.refuse(name, False, why="only a ViT backbone in the same checkpoint is supported")


ARCHITECTURES = (
    Architecture.of(
        "DPTModel",
        ViTConfig(),
        ViT,
        backbone_table,
        family="dpt",
        task="image-feature-extraction",
        read=_features,
        defaults=_DEFAULTS,
    ),
    *(
        Architecture.of(
            f"DPTFor{ending}",
            DPTConfig(),
            DPT,
            key_table,
            task=task,
            read=partial(_read, task),
            defaults=_DEFAULTS,
        )
        for ending, task in (
            ("DepthEstimation", "depth-estimation"),
            ("SemanticSegmentation", "image-segmentation"),
        )
    ),
)
