"""MobileViT: from its config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.mobilevit.config import MobileViTConfig
from models.mobilevit.model import MobileViT
from models.mobilevit.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels

_SEGMENTS = "image-segmentation"


def _read(fields: Fields, task: str) -> MobileViTConfig:
    labels = None if task == "image-feature-extraction" else count_labels(fields)
    return read_model(
        MobileViTConfig, fields, num_labels=labels, segments=task == "image-segmentation"
    )


ARCHITECTURES = tuple(
    Architecture(
        name=f"MobileViT{head}",
        model_type="mobilevit",
        family="mobilevit",
        task=task,
        read_config=partial(_read, task=task),
        defaults=write_settings(MobileViTConfig()),
        model=MobileViT,
        keys=key_table,
    )
    for head, task in (
        ("Model", "image-feature-extraction"),
        ("ForImageClassification", "image-classification"),
        ("ForSemanticSegmentation", _SEGMENTS),
    )
)
