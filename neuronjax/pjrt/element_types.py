"""PJRT_Buffer_Type and numpy dtypes, both ways."""

from __future__ import annotations

import numpy as np

from neuronjax.errors import UnknownElementTypeError
from neuronjax.hlo.module import ELEMENT_TYPES, TOKEN

_MLIR_OF_CODE = {
    1: "i1", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "ui8", 7: "ui16", 8: "ui32", 9: "ui64",
    10: "f16", 11: "f32", 12: "f64", 13: "bf16", 14: "complex<f32>", 15: "complex<f64>",
    16: "f8E5M2", 17: "f8E4M3FN", 18: "f8E4M3B11FNUZ", 19: "f8E5M2FNUZ", 20: "f8E4M3FNUZ",
    21: "i4", 22: "ui4", 24: "i2", 25: "ui2", 26: "f8E4M3", 27: "f8E3M4", 28: "f8E8M0FNU",
    29: "f4E2M1FN",
}  # fmt: skip
"""PJRT_Buffer_Type of the API header -> MLIR element type (0 is invalid)."""

DTYPES: dict[int, np.dtype] = {code: ELEMENT_TYPES[name] for code, name in _MLIR_OF_CODE.items()}
CODES: dict[np.dtype, int] = {dtype: code for code, dtype in DTYPES.items()} | {TOKEN: 23}


def dtype_of(code: int) -> np.dtype:
    """The dtype of a PJRT_Buffer_Type. Raises ``UnknownElementTypeError``."""
    try:
        return DTYPES[code]
    except KeyError:
        raise UnknownElementTypeError(
            f"unknown PJRT element type {code}; the known types are {sorted(DTYPES)}"
        ) from None


def code_of(dtype: np.dtype) -> int:
    """The PJRT_Buffer_Type of a dtype. Raises ``UnknownElementTypeError``."""
    try:
        return CODES[dtype]
    except KeyError:
        raise UnknownElementTypeError(f"dtype {dtype} has no PJRT element type") from None
