"""What nki-library's tests import as `neuron_dtypes`, and how arrays of MX words reach a kernel.

A word of four MX elements is a dtype of its own there. Here it is a record of bytes, whose fields
have the format's name: numpy tells the formats apart, and does not take them for numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.program.element_types import PACKED, Packed

WORDS: Mapping[str, np.dtype] = {
    name: np.dtype([(f"{name}_{byte}", np.uint8) for byte in range(packed.storage_bits // 8)])
    for name, packed in PACKED.items()
}
"""Name of a packed type -> the dtype of its arrays."""


def let_numpy_know() -> None:
    """From now on `nl.float8_e4m3fn_x4` and the like are the dtypes of `WORDS` to numpy."""
    Packed.dtype = property(lambda packed: WORDS[packed.name])  # type: ignore[assignment]
    Packed.__hash__ = lambda packed: hash(WORDS[packed.name])  # type: ignore[method-assign]


class _Words(np.ndarray):
    """An array of plain words that tells a kernel their format."""

    format_: Packed

    @property
    def dtype(self) -> Any:
        """The packed type."""
        return self.format_


def given(array: Any) -> Any:
    """An argument of a kernel; arrays of `WORDS` as words, which the kernel may write to."""
    name = _format(getattr(array, "dtype", None))
    if name is None:
        return array
    words = array.view(f"uint{8 * array.dtype.itemsize}").view(_Words)
    words.format_ = PACKED[name]
    return words


class Result:
    """What a kernel returned, as an array of any dtype; one of `WORDS` keeps its bits."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtype is None or _format(np.dtype(dtype)) is None:
            return np.asarray(self._array, dtype)
        return np.ascontiguousarray(self._array).view(dtype)


def static_cast(array: Any, dtype: Any) -> np.ndarray:
    """The array in another number format; words hold four numbers of the last dimension."""
    source = np.asarray(array)
    old, new = _format(source.dtype), _format(np.dtype(dtype))
    if old is not None:
        return _unpacked(source, PACKED[old]).astype(dtype)
    return source.astype(dtype) if new is None else _packed(source, PACKED[new])


def _packed(array: np.ndarray, words: Packed) -> np.ndarray:
    numbers = np.ascontiguousarray(array, np.float32).astype(words.element.name)
    bits = numbers.view(np.uint8)
    if words.element.bits == 4:
        bits = bits[..., ::2] | bits[..., 1::2] << 4
    return np.ascontiguousarray(bits).view(WORDS[words.name])


def _unpacked(array: np.ndarray, words: Packed) -> np.ndarray:
    bits = np.ascontiguousarray(array).view(np.uint8)
    if words.element.bits == 4:
        bits = np.stack([bits & 15, bits >> 4], axis=-1).reshape(*bits.shape[:-1], -1)
    return bits.view(words.element.name).astype(np.float32)


def sizeinbytes(dtype: Any) -> int:
    """The bytes of an element."""
    return np.dtype(dtype).itemsize


def is_float_type(dtype: Any) -> bool:
    """Whether a number format has a fraction."""
    kind = np.dtype(dtype)
    return kind.kind == "f" or hasattr(ml_dtypes, kind.name) or _format(kind) is not None


def _format(dtype: Any) -> str | None:
    """The packed type of a dtype of `WORDS`."""
    return next((name for name, words in WORDS.items() if dtype == words), None)


NAMES: Mapping[str, Any] = {
    **{name: getattr(ml_dtypes, name) for name in dir(ml_dtypes) if "float" in name},
    **WORDS,
    "static_cast": static_cast,
    "is_float_type": is_float_type,
    "sizeinbytes": sizeinbytes,
}
"""The module's names."""
