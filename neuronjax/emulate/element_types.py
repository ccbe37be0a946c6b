"""Element types in memory: decoding elements of a buffer to numbers, and encoding numbers.

Engines compute in FP32 and round when they write. Where AWS documents nothing, this module decides:
floating-point numbers are rounded to the nearest even integer, values out of range saturate, and
NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuronjax.formats import FLOAT32, TFLOAT32, Format
from neuronjax.program.element_types import ElementType, Integer, Packed
from neuronjax.rounding import NUMPY, Mode, Overflow, nearest, random_bits, stochastic

Array = np.ndarray
Encode = Callable[[Array, Array], None]
"""(view of the memory, values of its shape) -> None; writes the values."""
Decode = Callable[[Array], Array]
"""View of the memory -> its values as float32."""

_FLOAT32: np.dtype = np.dtype(np.float32)
_WORDS: dict[int, np.dtype] = {32: np.dtype(np.uint32), 16: np.dtype(np.uint16)}


@dataclass(frozen=True, slots=True)
class Rounding:
    """How FP32 values are rounded to a narrower format when an engine writes them.

    `seed` is that of stochastic rounding, which applies to floating-point formats; integers are
    always rounded to nearest.
    """

    mode: Mode = "nearest"
    overflow: Overflow = "infinity"
    flush_subnormals: bool = False
    seed: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether conversions by numpy and ml_dtypes are equivalent."""
        return self.mode == "nearest" and self.overflow == "infinity" and not self.flush_subnormals


PLAIN = Rounding()


def numpy_dtype(dtype: ElementType) -> np.dtype:
    """The dtype of arrays of such elements; packed types are held in unsigned words."""
    if isinstance(dtype, Packed):
        return _WORDS[dtype.storage_bits]
    if isinstance(dtype, Integer):
        return np.dtype(dtype.name)
    array_dtype: np.dtype | None = dtype.dtype
    return _FLOAT32 if array_dtype is None else array_dtype


def decoder(dtype: ElementType) -> Decode:
    """The function that reads elements of the type as float32; wider values are rounded."""
    if dtype == FLOAT32:
        return lambda view: view
    if dtype == TFLOAT32:
        return lambda view: nearest(NUMPY, view, TFLOAT32)
    return lambda view: view.astype(np.float32)


def encoder(dtype: ElementType, rounding: Rounding, random: RandomBits) -> Encode:
    """The function that writes float32 values or integers as elements of the type."""
    if isinstance(dtype, Integer):
        return _write_integers
    if isinstance(dtype, Packed) or dtype == FLOAT32:
        return _write
    if rounding.is_plain and dtype.dtype is not None:
        return _write
    return _rounding_encoder(dtype, rounding, random)


class RandomBits:
    """The random bits of stochastic rounding, 32 per value; `seed` names the sequence."""

    def __init__(self, seed: int = 0) -> None:
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Begins the sequence of a seed."""
        self._seed = np.array([seed], np.uint32)
        self._taken = 0

    def take(self, count: int) -> Array:
        """The bits of the next `count` values."""
        first, self._taken = self._taken, self._taken + count
        numbers = (first + np.arange(count, dtype=np.uint64)).astype(np.uint32)
        return random_bits(NUMPY, numbers, self._seed)


def _write(view: Array, values: Array) -> None:
    view[...] = values


def _write_integers(view: Array, values: Array) -> None:
    view[...] = values if values.dtype.kind in "iub" else saturated(values, view.dtype)


def _rounding_encoder(form: Format, rounding: Rounding, random: RandomBits) -> Encode:
    def write(view: Array, values: Array) -> None:
        values = np.ascontiguousarray(values, np.float32)
        view[...] = _rounded(values.reshape(-1), form, rounding, random).reshape(values.shape)

    return write


def _rounded(values: Array, form: Format, rounding: Rounding, random: RandomBits) -> Array:
    if rounding.mode == "nearest":
        return nearest(
            NUMPY, values, form,
            overflow=rounding.overflow, flush_subnormals=rounding.flush_subnormals,
        )  # fmt: skip
    return stochastic(
        NUMPY, values, random.take(values.size), form,
        overflow=rounding.overflow, flush_subnormals=rounding.flush_subnormals,
    )  # fmt: skip


def saturated(values: Array, dtype: np.dtype) -> Array:
    """Rounds floating-point values to an integer type, ties to even; NaN becomes 0."""
    return truncated(np.rint(values), dtype)


def truncated(values: Array, dtype: np.dtype) -> Array:
    """Truncates floating-point values to an integer type; NaN becomes 0, others saturate."""
    info = np.iinfo(dtype)
    wide = np.asarray(values, np.float64)
    # The bound above a type is a power of two, which float64 has; its greatest value may not be.
    is_above = wide >= float(info.max) + (1.0 if info.bits < 64 else 0.0)
    is_below = wide <= float(info.min)
    inside = np.where(is_above | is_below | np.isnan(wide), 0.0, wide)
    result = inside.astype(dtype)
    result = np.where(is_above, dtype.type(info.max), result)
    return np.where(is_below, dtype.type(info.min), result)
