"""Results of a kernel against those of a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_RTOL: Mapping[int, float] = {8: 1e-4, 4: 1e-4, 2: 2e-2, 1: 0.125}
"""Bytes of the narrower of two floating-point types -> the share of a number that results may be
off by where no bound is given: some units of the last place of FP8 and BF16, and in FP32 what an
activation function of the chip is off by."""


@dataclass(frozen=True)
class Bounds:
    """A result agrees where |result - expected| is at most atol + rtol · |expected|.

    None is what fits the types: of floating-point numbers rtol is 1e-4 for 32 bits, 2e-2 for 16
    and 0.125 for 8, and atol is rtol times the mean of |expected|; integers are equal.
    """

    rtol: float | None = None
    atol: float | None = None

    def of(self, result: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
        """`rtol` and `atol` for two arrays."""
        is_exact = any(array.dtype.kind in "iub" for array in (result, expected))
        fits = 0.0 if is_exact else _RTOL[min(result.itemsize, expected.itemsize)]
        rtol = fits if self.rtol is None else self.rtol
        if self.atol is not None:
            return rtol, self.atol
        sizes = np.abs(_wide(expected))
        finite = sizes[np.isfinite(sizes)]
        return rtol, rtol * float(finite.mean()) if finite.size else 0.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A result beside what was expected."""

    dtype: str
    shape: tuple[int, ...]
    rtol: float
    atol: float
    #: Elements that are farther off than allowed, and those that are NaN or infinite where a
    #: number was expected.
    wrong: int
    not_finite: int
    #: The largest |result - expected|, where it is, and its share of what is allowed there.
    largest_error: float
    at: tuple[int, ...]
    share_of_bound: float
    #: Why the two cannot be compared.
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether all elements are within the bound."""
        return not self.wrong and not self.reason

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        place = f"[{', '.join(map(str, self.at))}]"
        broken = f", {self.not_finite} of them not finite" if self.not_finite else ""
        return (
            f"{self.dtype}{list(self.shape)}: {self.wrong} of {math.prod(self.shape)} elements are "
            f"beyond {self.atol:.3g} + {self.rtol:g}·|expected|{broken}; the largest error is "
            f"{self.largest_error:.3g} at {place}"
        )


def agreements(
    results: Sequence[np.ndarray], expected: Sequence[ArrayLike], bounds: Bounds
) -> tuple[Agreement, ...]:
    """Each result beside the expected one at its place; one that one side lacks has a `reason`."""
    wanted = [np.asarray(value) for value in expected]
    rows = [_agreement(*pair, bounds) for pair in zip(results, wanted, strict=False)]
    if len(results) != len(wanted):
        reason = f"the kernel returns {len(results)} arrays, and the reference {len(wanted)}"
        rows.append(_incomparable("", (), reason))
    return tuple(rows)


def _agreement(result: np.ndarray, expected: np.ndarray, bounds: Bounds) -> Agreement:
    if result.size != expected.size or _bare(result.shape) != _bare(expected.shape):
        shapes = list(result.shape), list(expected.shape)
        reason = f"the shape is {shapes[0]}, and that of the reference {shapes[1]}"
        return _incomparable(result.dtype.name, result.shape, reason)
    if expected.dtype.kind in _NO_NUMBERS or expected.dtype.names:
        reason = f"the reference gives {expected.dtype.name}; return real numbers from it"
        return _incomparable(result.dtype.name, result.shape, reason)
    rtol, atol = bounds.of(result, expected)
    ours, theirs = _wide(result), _wide(expected).reshape(result.shape)
    with np.errstate(invalid="ignore"):
        errors = np.abs(ours - theirs)
        allowed = atol + rtol * np.abs(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    lost = ~same & ~(np.isfinite(ours) & np.isfinite(theirs))
    wrong = (lost | ~(errors <= allowed)) & ~same
    errors = np.where(same, 0.0, np.where(lost, np.inf, errors))
    at = np.unravel_index(int(errors.argmax()), errors.shape) if errors.size else ()
    largest = float(errors[at]) if errors.size else 0.0
    limit = float(allowed[at]) if errors.size else 0.0
    return Agreement(
        dtype=result.dtype.name,
        shape=result.shape,
        rtol=rtol,
        atol=atol,
        wrong=int(wrong.sum()),
        not_finite=int(lost.sum()),
        largest_error=largest,
        at=tuple(map(int, at)),
        share_of_bound=largest / limit if limit else math.inf if largest else 0.0,
    )


_NO_NUMBERS = frozenset("cmMOSTU")
"""Kinds of numpy's dtypes that are no real numbers, such as complex ones, strings and objects."""


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of size 1."""
    return tuple(size for size in shape if size != 1)


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


def _incomparable(dtype: str, shape: tuple[int, ...], reason: str) -> Agreement:
    return Agreement(
        dtype=dtype, shape=shape, rtol=0.0, atol=0.0, wrong=0, not_finite=0,
        largest_error=math.inf, at=(), share_of_bound=math.inf, reason=reason,
    )  # fmt: skip
