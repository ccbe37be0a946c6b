"""Handles: the addresses that stand for Python objects on the other side of the C API.

JAX holds a handle as an opaque pointer. Each points at a small record of its own, so that getters
generated as machine code can read from it.

Who owns what, and until when:

=================== ============================ ===============================================
memory              owner                        ends
=================== ============================ ===============================================
record of a handle  the table of handles, and    with the last of them: JAX's ``…_Destroy`` ends
                    whoever will write to it     the table's share, a writer keeps its own
record of a buffer  the slab (``values.py``),    never; it is given to another value some time after
                    lent to one value            JAX has destroyed every shard
flag "ready" of an  the event, which sets it     with the event's last function
event's record      before it calls anybody
flags of a buffer's the caller, who holds the    when the call returns; the end of a run holds no
record              buffer during the call       buffer and asks the table under its lock
``PJRT_Error``      JAX, from the return or the  ``Error_Destroy``; the last error never ends
                    callback that brought it
argument records    JAX                          when the call returns
strings             the process                  never, one per distinct text
strings of programs the program                  with its last handle
C arrays of getters the object of the handle     with its handle
bytes that are lent JAX                          when it calls the deleter that came with them
destination of a    JAX                          when the event of the copy is set
copy to the host
a value's memory    its ``ShardedValue``         the last shard is deleted, donated or destroyed,
                                                 and no run reads it any more; where it is small,
                                                 with the next call that makes or counts values
=================== ============================ ===============================================
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from neuronjax.errors import LifetimeError, NeuronError
from neuronjax.runtime.stress import POISON

_REFERENCES_OF_A_LAST_OWNER = 3
"""A variable here, one of the caller, and the argument of ``getrefcount``."""


class Graveyard:
    """Records whose handles ended, filled with a pattern: finds who writes to them later."""

    _MOST = 4096

    def __init__(self) -> None:
        self._records: deque[Any] = deque()

    def bury(self, record: Any) -> None:
        """Fills a record with the pattern and keeps it for a while, unless a writer owns it too."""
        if sys.getrefcount(record) > _REFERENCES_OF_A_LAST_OWNER:
            return
        ctypes.memset(record, POISON, ctypes.sizeof(record))
        self._records.append(record)
        if len(self._records) > self._MOST:
            check_poison(bytes(self._records.popleft()))

    def inspect(self) -> None:
        """Raises ``LifetimeError`` if somebody wrote to a record that is still kept."""
        for record in list(self._records):
            check_poison(bytes(record))


def check_poison(data: bytes) -> None:
    """Raises ``LifetimeError`` unless memory is as it was left when it was freed."""
    if data.strip(bytes([POISON])):
        raise LifetimeError(f"freed memory of {len(data)} bytes was written to: {data.hex(' ')}")


class Handles:
    """Address -> object, for everything but buffers."""

    def __init__(self, graveyard: Graveyard | None = None) -> None:
        self._objects: dict[int, Any] = {}
        self._records: dict[int, Any] = {}
        self._graveyard = graveyard
        self.get = self._objects.get
        """The object of a handle, ``None`` if there is none: quicker than an index."""

    def add(self, obj: Any, words: Sequence[int] = (0,)) -> int:
        """A new handle for ``obj``; ``words`` fill its record (64 bits each)."""
        record = array_type(ctypes.c_uint64, len(words))(*words)
        address = ctypes.addressof(record)
        self._objects[address] = obj
        self._records[address] = record
        return address

    def record(self, address: int) -> Any:
        """The C array of words behind a handle; whoever keeps it may write to it for ever."""
        return self._records[address]

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
        obj = self._objects.pop(address, None)
        record = self._records.pop(address, None)
        if self._graveyard is not None and record is not None:
            self._graveyard.bury(record)
        return obj

    def inspect(self) -> None:
        """Raises ``LifetimeError`` if freed records are watched and one was written to."""
        if self._graveyard is not None:
            self._graveyard.inspect()

    def counts(self) -> Counter[str]:
        """Live handles by the class of their objects."""
        return Counter(type(obj).__name__ for obj in list(self._objects.values()))


WORDS: Any = (ctypes.c_uint64 * (1 << 59)).from_address(0)
"""All memory as words of 64 bits: number n lies at address 8 n. What Python reads fastest."""
BYTES = memoryview((ctypes.c_uint8 * (1 << 62)).from_address(0)).cast("B")
"""All memory by address: how Python writes more than a word fastest."""


def object_at(address: int) -> Any:
    """The Python object at an address, which somebody owns."""
    return ctypes.cast(address, ctypes.py_object).value


def let_go(address: int) -> None:
    """Gives up the ownership of the Python object at an address."""
    ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))


class Strings:
    """C strings that live as long as this object, one per distinct text."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}

    def __call__(self, text: str | bytes) -> tuple[int, int]:
        """Address and size of ``text``, which is zero-terminated besides."""
        data = encoded(text) if isinstance(text, str) else text
        kept = self._kept.get(data) or self._kept.setdefault(data, c_string(data))
        return ctypes.addressof(kept), len(data)


class Numbers:
    """C arrays of signed 64-bit numbers that live as long as this object, one per distinct tuple.

    Of the arrays that two threads make of one tuple at the same time, both get the address of that
    which is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], Any] = {}

    def __call__(self, numbers: tuple[int, ...]) -> int:
        """The address of the numbers, which are kept there."""
        kept = self._kept.get(numbers)
        if kept is None:
            array = array_type(ctypes.c_int64, max(1, len(numbers)))(*numbers)
            kept = self._kept.setdefault(numbers, array)
        return ctypes.addressof(kept)


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
