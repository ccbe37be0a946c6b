"""YOLOS: from its config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels
from models.yolos.config import YolosConfig
from models.yolos.model import Yolos
from models.yolos.weights import key_table


def _read(fields: Fields, *, has_labels: bool) -> YolosConfig:
    return read_model(YolosConfig, fields, num_labels=count_labels(fields) if has_labels else None)


ARCHITECTURES = tuple(
    Architecture(
        name="YolosForObjectDetection" if has_labels else "YolosModel",
        model_type="yolos",
        family="yolos",
        task="object-detection" if has_labels else "image-feature-extraction",
        read_config=partial(_read, has_labels=has_labels),
        defaults=write_settings(YolosConfig()),
        model=Yolos,
        keys=key_table,
    )
    for has_labels in (False, True)
)
