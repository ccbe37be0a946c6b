"""DPT: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.dpt.config import DPTConfig
from models.dpt.model import DPT
from models.dpt.weights import key_table
from models.settings import read_model, write_settings
from models.vit.config import ViTConfig
from models.vit.families import read_features, read_vit
from models.vit.model import ViT
from models.vit.weights import key_table as vit_key_table
from models.weights.fields import Fields, count_labels

_DEFAULTS: Mapping[str, Any] = {
    **write_settings(ViTConfig(image_size=(384, 384))),
    **write_settings(DPTConfig()),
    "use_bias_in_fusion_residual": None,
}


def _read(fields: Fields, *, has_labels: bool) -> DPTConfig:
    _refuse_other_backbones(fields)
    has_norms = fields.flag("use_batch_norm_in_fusion_residual")
    return read_model(
        DPTConfig,
        fields,
        backbone=read_vit(fields),
        fusion_bias=fields.flag("use_bias_in_fusion_residual", not has_norms),
        num_labels=count_labels(fields) if has_labels else None,
    )


def _features(fields: Fields) -> ViTConfig:
    _refuse_other_backbones(fields)
    return read_features(fields)


def _refuse_other_backbones(fields: Fields) -> None:
    for name in ("is_hybrid", "backbone_config", "backbone"):
        fields.refuse(name, False, why="only a ViT backbone in the same checkpoint is supported")


ARCHITECTURES = (
    Architecture(
        name="DPTModel",
        model_type="dpt",
        family="dpt",
        task="image-feature-extraction",
        read_config=_features,
        defaults=_DEFAULTS,
        model=ViT,
        keys=partial(vit_key_table, "", ()),
    ),
    *(
        Architecture(
            name=name,
            model_type="dpt",
            family="dpt",
            task=task,
            read_config=partial(_read, has_labels=task == "image-segmentation"),
            defaults=_DEFAULTS,
            model=DPT,
            keys=key_table,
        )
        for name, task in (
            ("DPTForDepthEstimation", "depth-estimation"),
            ("DPTForSemanticSegmentation", "image-segmentation"),
        )
    ),
)
