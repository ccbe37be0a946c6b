"""The PJRT C API 0.90 as data: the argument record of every call, in the order of its slot.

Source: the public header ``xla/pjrt/c/pjrt_c_api.h``, version 0.90. ``c_api/calls.txt`` has a line
for each, with fields ``name:code``; the codes are in ``CODES``. Every argument record begins with
``struct_size`` and ``extension_start``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

API_VERSION = (0, 90)

CODES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "i": ctypes.c_int32,
    "b": ctypes.c_bool,
    "f": ctypes.c_float,
}


def _table(file: str) -> dict[str, str]:
    """Name of a record -> its fields, of a file with a line for each."""
    text = (Path(__file__).parent / "c_api" / file).read_text(encoding="utf-8")
    rows = (line.partition(" ") for line in text.splitlines())
    return {name: fields for name, _, fields in rows}


CALLS = _table("calls.txt")
"""Call -> the fields of its argument record."""
RECORDS = _table("records.txt")
"""Record that is not an argument -> its fields."""

ERROR_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}

NAMED_VALUE_STRING, NAMED_VALUE_INT64, NAMED_VALUE_INT64_LIST = 0, 1, 2
NAMED_VALUE_FLOAT, NAMED_VALUE_BOOL = 3, 4

EXTENSION_PROFILER, EXTENSION_LAYOUTS = 1, 4

LAYOUT_TILED, LAYOUT_STRIDES = 0, 1


class MemoryLayout(ctypes.Structure):
    """``PJRT_Buffer_MemoryLayout``: a union of tiled and strided layouts and its tag.

    The union is laid out as its larger member, the tiled one: two header words, ``minor_to_major``
    and its size, and three words of tiles. A strided layout uses the first four.
    """

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("body_size", ctypes.c_size_t),
        ("body_extension_start", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("num_values", ctypes.c_size_t),
        ("tile_dims", ctypes.c_void_p),
        ("tile_dim_sizes", ctypes.c_void_p),
        ("num_tiles", ctypes.c_size_t),
        ("type", ctypes.c_int32),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
EVENT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def structure(name: str, spec: str) -> Any:
    """The ctypes structure of a record with the fields ``spec``."""
    codes = CODES | {"L": MemoryLayout}
    fields = [(field, codes[code]) for field, code in (f.split(":") for f in spec.split())]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def argument_structure(call: str, spec: str) -> Any:
    """The ctypes structure of an argument record with the fields ``spec`` after its header."""
    return structure(f"PJRT_{call}_Args", f"struct_size:z extension_start:p {spec}")


@cache
def args(call: str) -> Any:
    """The ctypes structure of the argument record of ``call`` (``"Buffer_Device"``)."""
    return argument_structure(call, CALLS[call])


def word(call: str, field: str) -> int:
    """Number of the 64-bit word of an argument record that holds a field."""
    return getattr(args(call), field).offset // 8


OBJECT = 2
"""Number of the word of every argument record that holds the object of the call: it comes right
behind the two words of the header."""


@cache
def record(name: str) -> Any:
    """The ctypes structure of a record that is not an argument (``"Program"``)."""
    return structure(f"PJRT_{name}", RECORDS[name])


class Api(ctypes.Structure):
    """``PJRT_Api``: the table of calls handed to JAX."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version_size", ctypes.c_size_t),
        ("version_extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int32),
        ("minor_version", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in CALLS),
    )
