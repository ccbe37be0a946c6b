"""The three comparisons of StableHLO's check dialect, on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

_CLOSE_ULP = 3
_ALMOST_RELATIVE = 1e-3
_ALMOST_ABSOLUTE = 1e-4
_SHOWN = 3


def is_floating(array: np.ndarray) -> bool:
    """Whether the array has a real floating-point type, numpy's or ml_dtypes'."""
    try:
        ml_dtypes.finfo(array.dtype)
    except ValueError:
        return False
    return True


def components(array: np.ndarray) -> np.ndarray:
    """The array as real numbers: complex numbers become pairs."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def ulp_distance(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """How many representable numbers of their type lie from `got` to `want`, as uint64.

    Zeros of either sign are one number. NaN is not looked at.
    """
    keys = []
    for array in (got, want):
        bits = array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
        sign = np.uint64(1) << np.uint64(8 * array.dtype.itemsize - 1)
        magnitude = bits & (sign - np.uint64(1))
        keys.append(np.where(bits & sign, sign - magnitude, sign + magnitude))
    return np.maximum(*keys) - np.minimum(*keys)


def bitwise_equal(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Per element: the same bits."""
    if got.dtype == np.bool_ or not is_floating(got):
        return got == want
    kind = f"u{got.dtype.itemsize}"
    return got.view(kind) == want.view(kind)


def close(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Per element: at most 3 units in the last place apart; other types must be equal."""
    if not is_floating(got):
        return got == want
    return ulp_distance(got, want) <= _CLOSE_ULP


def almost_equal(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Per element: |got − want| ≤ 1e-4 + 1e-3·|want|."""
    if not is_floating(got):
        return got == want
    left, right = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(left - right) <= _ALMOST_ABSOLUTE + _ALMOST_RELATIVE * np.abs(right)
    return (near & np.isfinite(right)) | (left == right)


COMPARISONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "expect_eq": bitwise_equal,
    "expect_close": close,
    "expect_almost_eq": almost_equal,
}


def difference(check: str, got: np.ndarray, want: np.ndarray) -> str:
    """Empty if `got` meets `check`, a key of COMPARISONS, against `want`; else what differs.

    NaN equals NaN in every comparison; complex numbers are compared by component.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{check}: got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    left, right = components(got), components(want)
    good = COMPARISONS[check](left, right)
    if is_floating(left):
        good = good | (np.isnan(left) & np.isnan(right))
    if good.all():
        return ""
    bad = np.flatnonzero(~good)
    cases = ", ".join(f"[{i}] got {left[i]!s} want {right[i]!s}" for i in bad[:_SHOWN])
    return f"{check}: {len(bad)} of {len(good)} {got.dtype} components differ: {cases}"
