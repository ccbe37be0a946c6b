"""Rows of the registry for image models whose classes differ in their heads."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flax import nnx

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels
from models.weights.table import KeyTable

BACKBONE = "Model"
_TASKS: Mapping[str, str] = {
    BACKBONE: "image-feature-extraction",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForSemanticSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
}
"""Ending of a class -> its task."""

CLASSIFIER: Mapping[str, Mapping[str, Any]] = {BACKBONE: {}, "ForImageClassification": {}}
SEGMENTER: Mapping[str, Mapping[str, Any]] = {
    **CLASSIFIER,
    "ForSemanticSegmentation": {"segments": True},
}


def _nothing(fields: Fields) -> Mapping[str, Any]:
    return {}


def image_architectures(
    classes: str,
    model_type: str,
    config: Any,
    model: Callable[..., nnx.Module],
    keys: Callable[[Any], KeyTable],
    *,
    family: str | None = None,
    heads: Mapping[str, Mapping[str, Any]] = CLASSIFIER,
    read: Callable[[Fields], Mapping[str, Any]] = _nothing,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Architecture, ...]:
    """A row for each head of the classes that begin with `classes`.

    `config` holds the defaults of config.json; all heads but the backbone set its `num_labels`.
    `heads` gives, for the ending of each class, the settings that it alone has. `read` returns
    settings that stand in config.json in another form, and raises ConfigError for what is not
    supported. `defaults` is for names that no setting has. The family is the model type unless
    given.
    """
    return tuple(
        Architecture(
            name=classes + ending,
            model_type=model_type,
            family=family or model_type,
            task=_TASKS[ending],
            read_config=partial(_read, type(config), read, ending != BACKBONE, settings),
            defaults={**write_settings(config), **(defaults or {})},
            model=model,
            keys=keys,
        )
        for ending, settings in heads.items()
    )


def _read(
    record: type[Any],
    read: Callable[[Fields], Mapping[str, Any]],
    has_labels: bool,
    settings: Mapping[str, Any],
    fields: Fields,
) -> Any:
    labels = count_labels(fields) if has_labels else None
    return read_model(record, fields, num_labels=labels, **read(fields), **settings)
