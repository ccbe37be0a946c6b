"""How values of StableHLO types lie in the memories of a core."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from neuronjax.formats import FORMATS
from neuronjax.hlo.module import TensorSpec
from neuronjax.program.element_types import INTEGERS, ElementType

_BY_DTYPE: dict[np.dtype, ElementType] = {
    np.dtype(np.bool_): INTEGERS["uint8"],
    **{np.dtype(name): element_type for name, element_type in INTEGERS.items()},
    **{
        np.dtype(getattr(ml_dtypes, name)): INTEGERS[wider]
        for name, wider in {
            "int2": "int8",
            "int4": "int8",
            "uint2": "uint8",
            "uint4": "uint8",
        }.items()
    },
    np.dtype(np.float16): FORMATS["float16"],
    np.dtype(np.float32): FORMATS["float32"],
    np.dtype(ml_dtypes.bfloat16): FORMATS["bfloat16"],
    **{
        np.dtype(getattr(ml_dtypes, name)): FORMATS[name]
        for name in FORMATS
        if name.startswith(("float8", "float4")) and hasattr(ml_dtypes, name)
    },
}
"""numpy dtype -> element type that engines compute with."""

NARROW_FLOATS = frozenset({"bfloat16", "float16", "float8_e4m3", "float8_e5m2"})
"""Floating-point types shorter than FP32 that engines read and write themselves, all of whose
values FP32 has."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The element type a value is stored as, and words per element: 2 of a complex128."""

    dtype: ElementType
    words: int = 1


def storage_of(dtype: np.dtype) -> Storage:
    """How elements of a numpy dtype are stored; types that no engine knows as plain words."""
    if dtype in _BY_DTYPE:
        return Storage(_BY_DTYPE[dtype])
    if dtype.itemsize == 1:
        return Storage(INTEGERS["uint8"])
    return Storage(INTEGERS["uint64"], math.ceil(dtype.itemsize / 8))


def is_native(dtype: np.dtype) -> bool:
    """Whether engines compute with the type; others are only moved, or go to the host."""
    return dtype in _BY_DTYPE


def stored(array: np.ndarray) -> np.ndarray:
    """A value's array as its buffer has it."""
    storage = storage_of(array.dtype)
    if is_native(array.dtype):
        return array.astype(_PLAIN.get(array.dtype.name, array.dtype), copy=False)
    words = np.dtype(storage.dtype.name)
    flat = np.ascontiguousarray(array).reshape(*array.shape, 1).view(words)
    return flat if storage.words > 1 else flat.reshape(array.shape)


def restored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The value of a buffer's array."""
    if is_native(spec.dtype):
        return array.reshape(spec.shape).astype(spec.dtype, copy=False)
    return np.ascontiguousarray(array).reshape(-1).view(spec.dtype).reshape(spec.shape)


_PLAIN = {"bool": "uint8", "int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
"""numpy types that lie in wider elements."""
