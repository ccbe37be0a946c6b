"""What classifiers give, by transformers' names: one class, several classes, or numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from launch.data.records import Record, RecordError
from launch.errors import DataError
from launch.training.objectives import PLAIN, LabelLoss, Loss
from models.losses import TokenLosses

ONE_CLASS = "single_label_classification"
CLASSES = "multi_label_classification"
NUMBERS = "regression"


class TargetLoss(Protocol):
    """The loss of what a classifier gives."""

    def __call__(self, logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Loss:
        """The sums over `weights`, of the shape of all that is classified."""


@dataclass(frozen=True)
class OneClass:
    """Cross entropy of `labels`, the numbers of classes, and their `accuracy`."""

    of_labels: LabelLoss

    def __call__(self, logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Loss:
        """The mean over `weights`, of the shape of the labels; logits [..., L]."""
        right = jnp.argmax(logits, axis=-1) == labels
        return sum_losses(self.of_labels(logits, labels), weights, accuracy=right)


PLAIN_CLASS = OneClass(PLAIN)


@dataclass(frozen=True)
class SeveralClasses:
    """Binary cross entropy of `labels` [B, L], each 1 or 0, or between, as the mean over the
    classes; `accuracy` says for how many rows all classes are right."""

    def __call__(self, logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Loss:
        """The mean over `weights` [B]; logits [B, L]."""
        logits = logits.astype(jnp.float32)
        losses = jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels), axis=-1)
        right = jnp.all((logits > 0) == (labels > 0.5), axis=-1)
        return sum_losses(TokenLosses(losses, losses), weights, accuracy=right)


@dataclass(frozen=True)
class Numbers:
    """Squared error of `labels` [B, L], as the mean over the numbers of a row, and their
    `absolute_error`."""

    def __call__(self, logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Loss:
        """The mean over `weights` [B]; logits [B, L]."""
        errors = logits.astype(jnp.float32) - labels
        losses = jnp.mean(jnp.square(errors), axis=-1)
        absolute = jnp.mean(jnp.abs(errors), axis=-1)
        return sum_losses(TokenLosses(losses, losses), weights, absolute_error=absolute)


def sum_losses(losses: TokenLosses, weights: jax.Array, **metrics: jax.Array) -> Loss:
    """Sums over what counts; with `nats`, the plain cross entropy, where the loss is another."""
    if losses.nats is not losses.loss:
        metrics["nats"] = losses.nats
    weights = weights.astype(jnp.float32)

    def total(values: jax.Array) -> jax.Array:
        # A row that is all padding may have no meaning, not even a number.
        return jnp.sum(jnp.where(weights > 0, values.astype(jnp.float32) * weights, 0.0))

    sums = {name: total(values) for name, values in metrics.items()}
    return Loss(total(losses.loss), jnp.sum(weights), sums)


def read_class(record: Record, value: Any, labels: Sequence[str]) -> int:
    """The number of a class, given as such or by its name. Raises RecordError."""
    if isinstance(value, str) and value in labels:
        return labels.index(value)
    if type(value) is int and 0 <= value < len(labels):
        return value
    raise RecordError(
        f"{record.place}: the label {value!r} is not one of the {len(labels)} classes "
        f"{', '.join(labels[:12])}."
    )


def _one_class(record: Record, value: Any, labels: Sequence[str]) -> np.int32:
    return np.int32(read_class(record, value, labels))


def _classes(record: Record, value: Any, labels: Sequence[str]) -> np.ndarray:
    """[L], from a list of classes, or a list of a number for each class."""
    if not isinstance(value, list):
        raise RecordError(
            f"{record.place}: expected a list of classes, which may be empty, not {value!r}."
        )
    if _is_vector(value):
        return _vector(record, value, len(labels), highest=1.0)
    applies = np.zeros(len(labels), np.float32)
    applies[[read_class(record, name, labels) for name in value]] = 1
    return applies


def _numbers(record: Record, value: Any, labels: Sequence[str]) -> np.ndarray:
    """[L], from a number, or a list of them."""
    return _vector(record, value if isinstance(value, list) else [value], len(labels))


def _vector(record: Record, values: list[Any], count: int, highest: float | None = None) -> Any:
    whole = [type(value) in (int, float) and isfinite(value) for value in values]
    inside = highest is None or (all(whole) and all(0 <= value <= highest for value in values))
    if len(values) != count or not all(whole) or not inside:
        bounds = "" if highest is None else f" from 0 to {highest:g}"
        raise RecordError(
            f"{record.place}: expected {count} number{'s' * (count > 1)}{bounds}, not {values!r}."
        )
    return np.array(values, np.float32)


@dataclass(frozen=True)
class Problem:
    """How labels are read, and what is minimised.

    Attributes:
      read: the label of a record, as it is in a row, by the names of the classes.
      loss: what is minimised.
      has_labels: whether that is a cross entropy to which a `LabelLoss` may add something.
      loss_unit: what it is in, in messages; None: nats per what is classified.
    """

    read: Callable[[Record, Any, Sequence[str]], np.ndarray | np.generic]
    loss: Callable[[LabelLoss], TargetLoss]
    has_labels: bool = False
    loss_unit: str | None = None


PROBLEMS: Mapping[str, Problem] = {
    ONE_CLASS: Problem(_one_class, OneClass, has_labels=True),
    CLASSES: Problem(_classes, lambda _: SeveralClasses(), loss_unit="nats per class"),
    NUMBERS: Problem(_numbers, lambda _: Numbers(), loss_unit="squared error per number"),
}


def choose_problem(labels: Sequence[Any], known: str, asked: str | None) -> str:
    """The problem that was asked for; else what labels say: lists several classes, numbers with a
    fraction numbers; else what the model is known for. Raises DataError for an unknown one."""
    if asked is not None:
        return asked
    if any(isinstance(label, list) for label in labels):
        return CLASSES if known != NUMBERS else NUMBERS
    if any(type(label) is float for label in labels):
        return NUMBERS
    if known not in PROBLEMS:
        raise DataError(f"problem_type={known} is unknown; choose one of {', '.join(PROBLEMS)}.")
    return known


def name_labels(labels: Sequence[Any], problem: str, known: Sequence[str]) -> list[str]:
    """The names of what a classifier gives: those of the model if it has all that the labels name,
    else those of the labels in order, else as many numbers as there are."""
    lists = [label if isinstance(label, list) else [label] for label in labels]
    if problem == NUMBERS or (problem == CLASSES and any(map(_is_vector, lists))):
        count = max(map(len, lists), default=1)
        return list(known) if len(known) == count else [f"LABEL_{i}" for i in range(count)]
    values = {value for row in lists for value in row if isinstance(value, str | int)}
    texts = sorted(value for value in values if isinstance(value, str))
    numbers = [value for value in values if type(value) is int]
    if set(texts) <= set(known) and max(numbers, default=-1) < len(known):
        return list(known)
    return texts or [f"LABEL_{i}" for i in range(max(numbers, default=1) + 1)]


def _is_vector(values: list[Any]) -> bool:
    """Whether a list has a number for each class, not the classes that apply."""
    return any(type(value) is float for value in values)
