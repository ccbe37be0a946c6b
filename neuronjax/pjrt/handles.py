"""Handles: the addresses that stand for Python objects on the other side of the C API.

JAX holds a handle as an opaque pointer. Each points at a small record of its own, so that getters
generated as machine code can read from it.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from neuronjax.errors import NeuronError


class Handles:
    """Address -> object, for everything but buffers."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._records: dict[int, Any] = {}

    def add(self, obj: Any, words: Sequence[int] = (0,)) -> int:
        """A new handle for ``obj``; ``words`` fill its record (64 bits each)."""
        record = array_type(ctypes.c_uint64, len(words))(*words)
        address = ctypes.addressof(record)
        self._objects[address] = obj
        self._records[address] = record
        return address

    def __getitem__(self, address: int | None) -> Any:
        try:
            return self._objects[address]  # type: ignore[index]
        except KeyError:
            raise NeuronError(
                f"JAX used a handle ({address}) that does not exist or was destroyed"
            ) from None

    def __contains__(self, address: int) -> bool:
        return address in self._objects

    def drop(self, address: int) -> Any:
        """Ends a handle; returns its object or ``None``."""
        self._records.pop(address, None)
        return self._objects.pop(address, None)

    def counts(self) -> Counter[str]:
        """Live handles by the class of their objects."""
        return Counter(type(obj).__name__ for obj in list(self._objects.values()))


class Strings:
    """C strings that live as long as the process, one per distinct text."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}

    def __call__(self, text: str | bytes) -> tuple[int, int]:
        """Address and size of ``text``, which is zero-terminated besides."""
        data = encoded(text) if isinstance(text, str) else text
        if data not in self._kept:
            self._kept[data] = c_string(data)
        return ctypes.addressof(self._kept[data]), len(data)


@functools.lru_cache(maxsize=1024)
def array_type(kind: Any, count: int) -> Any:
    """The C type of `count` elements: a class, which Python would make anew and leave as garbage
    with cycles each time."""
    return kind * count


def encoded(text: str) -> bytes:
    """UTF-8; what has no such form (a lone surrogate) becomes a backslash and its number."""
    return text.encode(errors="backslashreplace")


def c_string(data: bytes) -> Any:
    """A C array of bytes with a zero behind them."""
    return array_type(ctypes.c_char, len(data) + 1).from_buffer_copy(data + b"\0")


def pointer_array(addresses: Sequence[int]) -> Any:
    """A C array of pointers; keep the object as long as the array is in use."""
    return array_type(ctypes.c_void_p, max(1, len(addresses)))(*addresses)


def read_pointers(address: int | None, count: int) -> list[int]:
    """``count`` pointers at ``address``."""
    if not count or not address:
        return []
    return array_type(ctypes.c_uint64, count).from_address(address)[:]


def read_int64s(address: int | None, count: int) -> tuple[int, ...]:
    """``count`` signed 64-bit numbers at ``address``."""
    if not count or not address:
        return ()
    return tuple(array_type(ctypes.c_int64, count).from_address(address)[:])


def read_bytes(address: int | None, size: int) -> bytes:
    """``size`` bytes at ``address``."""
    return ctypes.string_at(address, size) if address and size else b""
