"""Swin and Donut's encoder: from config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.swin.config import SwinConfig
from models.swin.model import Swin
from models.swin.weights import key_table
from models.weights.fields import Fields, count_labels

DONUT = "donut-swin"


def _read(fields: Fields, *, is_classifier: bool, final_norm: bool) -> SwinConfig:
    if not final_norm:
        fields.refuse(
            "use_absolute_embeddings",
            False,
            why="Donut's encoder has no absolute position embeddings",
        )
    labels = count_labels(fields) if is_classifier else None
    return read_model(SwinConfig, fields, num_labels=labels, final_norm=final_norm)


def _architecture(
    classes: str, model_type: str, prefix: str, *, is_classifier: bool
) -> Architecture:
    return Architecture(
        name=classes + ("ForImageClassification" if is_classifier else "Model"),
        model_type=model_type,
        family="swin",
        task="image-classification" if is_classifier else "image-feature-extraction",
        read_config=partial(_read, is_classifier=is_classifier, final_norm=model_type != DONUT),
        defaults=write_settings(SwinConfig()),
        model=Swin,
        keys=partial(key_table, prefix),
    )


ARCHITECTURES = tuple(
    _architecture(classes, model_type, prefix, is_classifier=is_classifier)
    for classes, model_type, prefix in (
        ("Swin", "swin", "swin."),
        ("DonutSwin", DONUT, "donut."),
    )
    for is_classifier in (False, True)
)
