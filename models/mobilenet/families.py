"""MobileNetV2: from its config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.mobilenet.config import MobileNetConfig
from models.mobilenet.model import MobileNet
from models.mobilenet.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels

_SEGMENTS = "image-segmentation"


def _read(fields: Fields, task: str) -> MobileNetConfig:
    labels = None if task == "image-feature-extraction" else count_labels(fields)
    return read_model(
        MobileNetConfig, fields, num_labels=labels, segments=task == "image-segmentation"
    )


ARCHITECTURES = tuple(
    Architecture(
        name=f"MobileNetV2{head}",
        model_type="mobilenet_v2",
        family="mobilenet",
        task=task,
        read_config=partial(_read, task=task),
        defaults=write_settings(MobileNetConfig()),
        model=MobileNet,
        keys=key_table,
    )
    for head, task in (
        ("Model", "image-feature-extraction"),
        ("ForImageClassification", "image-classification"),
        ("ForSemanticSegmentation", _SEGMENTS),
    )
)
