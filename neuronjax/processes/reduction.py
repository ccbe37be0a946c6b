"""Reductions of collectives, bit by bit as XLA:CPU computes them among the cores of one process.

XLA begins with the operation's neutral value and goes through the ranks of a group in order, so a
value that was begun on one process is continued on the next: the result does not depend on how the
ranks are divided over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import ml_dtypes
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
"""The same for truth values."""

_WIDE: Mapping[np.dtype, np.dtype] = {np.dtype(ml_dtypes.bfloat16): np.dtype(np.float32)} | {
    np.dtype(getattr(ml_dtypes, name)): np.dtype(np.float16)
    for name in (
        "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
        "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
    )
}  # fmt: skip
"""Narrow types that XLA:CPU reduces in a wider one, and rounds at the end."""


def wide(dtype: np.dtype) -> np.dtype:
    """The type in which values of ``dtype`` are reduced."""
    return _WIDE.get(dtype, dtype)


def begin(reduction: Reduction, like: np.ndarray) -> np.ndarray:
    """The neutral value in the shape of ``like`` and the type of its reduction."""
    dtype = wide(like.dtype)
    return np.full(like.shape, reduction.neutral(dtype), dtype)


def take(reduction: Reduction, total: np.ndarray, values: Iterable[np.ndarray]) -> None:
    """Takes the values of ranks, in order, into ``total``."""
    with np.errstate(all="ignore"):
        for value in values:
            reduction.combine(total, value.astype(total.dtype, copy=False))


def finish(total: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The result of a reduction of values of ``dtype``."""
    with np.errstate(all="ignore"):
        return total.astype(dtype, copy=False)
