"""Rows of the registry for models of images, and of images of sound, whose classes differ in their
heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flax import nnx

from models.architecture import Architecture
from models.weights.backbone import Backbone
from models.weights.fields import Fields, count_labels
from models.weights.rows import conv_norm_rows, dense_rows
from models.weights.table import KeyTable, Row
from models.weights.transforms import POINTWISE

MODEL = "Model"
_TASKS: Mapping[str, str] = {
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForSemanticSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
}
"""Ending of a class with a head -> its task."""


@dataclass(frozen=True)
class Head:
    """What stands behind a backbone: its rows, keys that it does not read, and the settings of
    the config that it alone has."""

    rows: Sequence[Row]
    ignored: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def classifier(key: str = "classifier", settings: Mapping[str, Any] = {}) -> Mapping[str, Head]:
    """A linear layer that labels images."""
    rows = tuple(dense_rows(key, "classifier"))
    return {"ForImageClassification": Head(rows, settings=settings)}


def segmenter(pool: str, window: str, projection: str, number: str = "{i}") -> Mapping[str, Head]:
    """A `SegmentationHead`, by the keys of its parts. Where there are several windows, the key of
    each holds its number."""
    theirs, ours = "segmentation_head", "segmentation"
    rows = (
        *conv_norm_rows(f"{theirs}.{pool}", f"{ours}.pool"),
        *conv_norm_rows(f"{theirs}.{window}", f"{ours}.windows.{number}"),
        *conv_norm_rows(f"{theirs}.{projection}", f"{ours}.projection"),
        *dense_rows(f"{theirs}.classifier.convolution", f"{ours}.classifier", POINTWISE),
    )
    return {"ForSemanticSegmentation": Head(rows, settings={"segments": True})}


def image_architectures(
    classes: str,
    model_type: str,
    config: Any,
    model: Callable[..., nnx.Module],
    backbone: Backbone | Callable[[Any], Backbone],
    heads: Mapping[str, Head],
    *,
    read: Callable[[Fields], Mapping[str, Any]] = lambda fields: {},
    alone: str = "image-feature-extraction",
    **others: Any,
) -> tuple[Architecture, ...]:
    """Rows for the backbone alone and with each head, by the endings of their classes, which begin
    with `classes`.

    `config`, `read` and `others` are as in `Architecture.of`; with a head the config's `num_labels`
    is set. The rows of a backbone may depend on the config. `alone` is the task of the backbone.
    """

    def architecture(ending: str, head: Head | None) -> Architecture:
        def read_all(fields: Fields) -> Mapping[str, Any]:
            labels = {} if head is None else {"num_labels": count_labels(fields), **head.settings}
            return {**read(fields), **labels}

        def keys(config: Any) -> KeyTable:
            rows = backbone if isinstance(backbone, Backbone) else backbone(config)
            if head is None:
                return rows.table(None, [row for other in heads.values() for row in other.rows])
            return rows.table(head.rows, ignored=head.ignored)

        return Architecture.of(
            classes + ending,
            config,
            model,
            keys,
            model_type=model_type,
            task=_TASKS.get(ending, alone),
            read=read_all,
            **others,
        )

    endings: Mapping[str, Head | None] = {MODEL: None, **heads}
    return tuple(architecture(ending, head) for ending, head in endings.items())
