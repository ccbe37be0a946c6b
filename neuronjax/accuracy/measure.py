"""Measures of the error of numbers.

Sums of squares use NumPy's ufuncs, since its linear algebra would start threads that compete with
the program's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Error:
    """Distance of an array x from a reference r. NaN against NaN and equal infinities count 0."""

    relative: float = 0.0
    """‖x − r‖₂ / ‖r‖₂; ``inf`` where only one of two numbers is finite, or r is zero and x not."""
    max_relative: float = 0.0
    """Largest |x − r| / |r| of an element; |r| counts as no less than x's least normal number."""
    ulps: float = 0.0
    """Largest |x − r| of an element in units in the last place of x's type at r."""

    def worse(self, other: Error) -> Error:
        """The greater of each number."""
        return Error(
            max(self.relative, other.relative),
            max(self.max_relative, other.max_relative),
            max(self.ulps, other.ulps),
        )


NONE = Error()


def error(values: np.ndarray, reference: np.ndarray) -> Error:
    """Distance of ``values``, in whose type ULPs are counted, from a wider ``reference``."""
    limits = _limits(_real_dtype(values.dtype))
    x, r = _flat64(values), _flat64(reference)
    with np.errstate(all="ignore"):
        wrong = np.subtract(x, r)
        np.abs(wrong, out=wrong)
        greatest = float(np.max(wrong, initial=0.0))
        if greatest == 0.0:
            return NONE
        if not np.isfinite(greatest):
            alike = (x == r) | (np.isnan(x) & np.isnan(r))
            wrong[~(np.isfinite(x) & np.isfinite(r))] = np.inf
            wrong[alike] = 0.0
            r = np.where(np.isfinite(r), r, 0.0)
        size = np.abs(r)
        return Error(
            relative=_ratio(_norm(wrong), _norm(size)),
            max_relative=float(np.max(wrong / np.maximum(size, limits.least_normal), initial=0.0)),
            ulps=float(np.max(wrong / _ulp(size, limits), initial=0.0)),
        )


def ulp(numbers: np.ndarray, dtype: Any) -> np.ndarray:
    """The unit in the last place of float type ``dtype`` at a row of finite numbers, as float64.

    Among subnormal numbers it is their distance, beyond the greatest number that of the greatest.
    """
    return _ulp(np.abs(np.array(numbers, np.float64, ndmin=1)), _limits(np.dtype(dtype)))


@dataclass(frozen=True)
class _Limits:
    mantissa_bits: int
    least_normal: float
    greatest_power: float
    """The greatest power of two of the type."""


@cache
def _limits(dtype: np.dtype) -> _Limits:
    info = ml_dtypes.finfo(dtype)
    greatest = int(np.frexp(np.float64(info.max))[1]) - 1
    return _Limits(int(info.nmant), 2.0 ** int(info.minexp), 2.0**greatest)


_EXPONENT = np.int64(0x7FF0000000000000)
"""The exponent bits of float64; on their own they are the power of two below a number."""


def _ulp(size: np.ndarray, limits: _Limits) -> np.ndarray:
    power = (size.view(np.int64) & _EXPONENT).view(np.float64)
    np.clip(power, limits.least_normal, limits.greatest_power, out=power)
    return np.multiply(power, 2.0**-limits.mantissa_bits, out=power)


def _real_dtype(dtype: np.dtype) -> np.dtype:
    return np.zeros((), dtype).real.dtype if dtype.kind == "c" else dtype


def _flat64(values: np.ndarray) -> np.ndarray:
    """Real and imaginary parts as a row of float64."""
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values, np.complex128).view(np.float64)
    return np.asarray(values, np.float64).ravel()


def _norm(values: np.ndarray) -> float:
    """The Euclidean norm of non-negative numbers, safe from overflow and underflow."""
    largest = float(np.max(values, initial=0.0))
    if largest == 0.0 or np.isinf(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(np.square(scaled, out=scaled).sum())


def _ratio(wrong: float, size: float) -> float:
    if wrong == 0.0:
        return 0.0
    return wrong / size if size else float("inf")
