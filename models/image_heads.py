"""Rows of the registry for image models whose classes differ in their heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flax import nnx

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.weights.backbone import Backbone
from models.weights.fields import Fields, count_labels
from models.weights.rows import dense_rows
from models.weights.table import Row

MODEL = "Model"
_TASKS: Mapping[str, str] = {
    MODEL: "image-feature-extraction",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForSemanticSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
}
"""Ending of a class -> its task."""


@dataclass(frozen=True)
class Head:
    """What stands behind a backbone: its rows, keys that it does not read, and the settings of
    the config that it alone has."""

    rows: Sequence[Row]
    ignored: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def classifier(key: str = "classifier") -> Mapping[str, Head]:
    """A linear layer that labels images."""
    return {"ForImageClassification": Head(tuple(dense_rows(key, "classifier")))}


def _nothing(fields: Fields) -> Mapping[str, Any]:
    return {}


def image_architectures(
    classes: str,
    model_type: str,
    config: Any,
    model: Callable[..., nnx.Module],
    backbone: Backbone,
    heads: Mapping[str, Head],
    *,
    family: str | None = None,
    read: Callable[[Fields], Mapping[str, Any]] = _nothing,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Architecture, ...]:
    """Rows for the backbone alone and with each head, by the endings of their classes, which begin
    with `classes`.

    `config` holds the defaults of config.json; with a head its `num_labels` is set. `read` returns
    settings that stand in config.json in another form, and raises ConfigError for what is not
    supported. `defaults` is for names that no setting has. The family is the model type unless
    given.
    """

    def architecture(ending: str, head: Head | None) -> Architecture:
        def read_config(fields: Fields) -> Any:
            labels = {} if head is None else {"num_labels": count_labels(fields), **head.settings}
            return read_model(type(config), fields, **read(fields), **labels)

        every = [row for other in heads.values() for row in other.rows]
        table = (
            backbone.table(None, every)
            if head is None
            else backbone.table(head.rows, ignored=head.ignored)
        )
        return Architecture(
            name=classes + ending,
            model_type=model_type,
            family=family or model_type,
            task=_TASKS[ending],
            read_config=read_config,
            defaults={**write_settings(config), **(defaults or {})},
            model=model,
            keys=lambda config: table,
        )

    endings: Mapping[str, Head | None] = {MODEL: None, **heads}
    return tuple(architecture(ending, head) for ending, head in endings.items())
