"""Reductions of collectives, bit by bit as XLA:CPU computes them among the cores of one process.

XLA begins with the operation's neutral value and goes through the ranks of a group in order, so a
value that was begun on one process is continued on the next: the result does not depend on how the
ranks are divided over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Combine = Callable[[np.ndarray, np.ndarray], None]
"""Takes the second array into the first, element by element."""


def _add(total: np.ndarray, value: np.ndarray) -> None:
    np.add(total, value, out=total)


def _multiply(total: np.ndarray, value: np.ndarray) -> None:
    np.multiply(total, value, out=total)


def _maximum(total: np.ndarray, value: np.ndarray) -> None:
    """A NaN is never larger, as in C++'s ``std::max``: the result ignores it."""
    np.copyto(total, value, where=total < value)


def _minimum(total: np.ndarray, value: np.ndarray) -> None:
    np.copyto(total, value, where=value < total)


def _lowest(dtype: np.dtype) -> object:
    if dtype == np.bool_:
        return False
    return _limits(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype) -> object:
    if dtype == np.bool_:
        return True
    return _limits(dtype).max if dtype.kind in "iu" else np.inf


def _limits(dtype: np.dtype) -> np.iinfo:
    return np.iinfo(dtype)


@dataclass(frozen=True)
class Reduction:
    """A neutral value, which may depend on the type, and how two values become one."""

    neutral: Callable[[np.dtype], object]
    combine: Combine


SUM = Reduction(lambda _: 0, _add)
PRODUCT = Reduction(lambda _: 1, _multiply)
MAXIMUM = Reduction(_lowest, _maximum)
MINIMUM = Reduction(_highest, _minimum)

REDUCTIONS: Mapping[str, Reduction] = {
    "stablehlo.add": SUM,
    "stablehlo.multiply": PRODUCT,
    "stablehlo.maximum": MAXIMUM,
    "stablehlo.minimum": MINIMUM,
}
"""The operation of a collective's region -> reduction of numbers."""

OF_TRUTH_VALUES: Mapping[str, Reduction] = {
    "stablehlo.add": MAXIMUM,
    "stablehlo.or": MAXIMUM,
    "stablehlo.maximum": MAXIMUM,
    "stablehlo.multiply": MINIMUM,
    "stablehlo.and": MINIMUM,
    "stablehlo.minimum": MINIMUM,
}
"""The operation of a collective's region -> reduction of truth values."""


def begin(reduction: Reduction, like: np.ndarray) -> np.ndarray:
    """The neutral value in the shape and type of ``like``."""
    return np.full(like.shape, reduction.neutral(like.dtype), like.dtype)


def take(reduction: Reduction, total: np.ndarray, values: Iterable[np.ndarray]) -> None:
    """Takes the values of ranks, in order, into ``total``."""
    with np.errstate(all="ignore"):
        for value in values:
            reduction.combine(total, value)
