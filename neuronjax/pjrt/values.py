"""Buffers on the C side: fixed records in slabs, the N shards of a value side by side.

The layout of a record is shared with the machine code of ``native.py``. A handle is the address of
a record; ``back`` leads to the record of shard 0, which counts the live shards, so that destroying
a shard needs Python only for the last of them, and an argument list of N shards of one value is
recognised by its addresses. Small values need not even that: machine code strings the records of
those that are destroyed on a list, and ``collect`` ends them before others are made or counted.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.errors import NeuronError
from neuronjax.pjrt.handles import BYTES, WORDS, check_poison
from neuronjax.runtime.stress import POISON
from neuronjax.runtime.value import ShardedValue, release_all

RECORD_BYTES = 64
RECORD = np.dtype(
    {
        "names": [
            "back",
            "live",
            "device",
            "memory",
            "dims",
            "rank",
            "type",
            "deleted",
            "ready",
            "small",
            "layout",
        ],
        "formats": ["u8", "i8", "u8", "u8", "u8", "u8", "i4", "u1", "u1", "u1", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 52, 53, 54, 56],
        "itemsize": RECORD_BYTES,
    }
)
_RECORDS_PER_SLAB = 4096

SMALL_BYTES = 4096
"""Memory of a shard that may be given back a little later than it is destroyed."""


def offset(field: str) -> int:
    """Byte offset of a field in the record."""
    fields = RECORD.fields
    assert fields is not None
    return fields[field][1]


_LIVE = offset("live")


def template(
    devices: Sequence[int],
    memories: Sequence[int],
    dims: int,
    rank: int,
    element_type: int,
    layout: int,
    small: bool = False,
) -> bytes:
    """The records of a fresh value with a shard on each of ``devices`` (handles)."""
    records = np.zeros(len(devices), RECORD)
    records["back"] = np.arange(len(devices)) * RECORD_BYTES
    records["live"][0] = len(devices)
    records["device"] = devices
    records["memory"] = memories
    records["dims"] = dims
    records["rank"] = rank
    records["type"] = element_type
    records["layout"] = layout
    records["small"] = small
    return records.tobytes()


def ready_template(records: bytes) -> bytes:
    """The same records for a value that is ready from the start."""
    table = np.frombuffer(records, RECORD).copy()
    table["ready"] = 1
    return table.tobytes()


class ValueTable:
    """Values by the address of their first record."""

    def __init__(self, watched: bool = False) -> None:
        """``watched`` finds out who writes to records of values that were forgotten."""
        self.values: dict[int, ShardedValue] = {}
        self._watched = watched
        self._slabs: list[Any] = []
        self._free: dict[int, list[int]] = {}
        self._next = self._end = 0
        self._lock = threading.RLock()  # a collection inside it may end other values
        self._none_destroyed = ctypes.c_uint64(0)
        self._destroyed = ctypes.addressof(self._none_destroyed) >> 3
        self._take_destroyed: Callable[[], int] = lambda: 0

    def use_list(self, head: int, take: Callable[[], int]) -> None:
        """Lets machine code string destroyed small values on a list.

        ``head`` is the address of the word with the first of them, 0 if there are none. ``take``
        returns that and empties the list; the word ``live`` of a record has the next.
        """
        self._destroyed, self._take_destroyed = head >> 3, take

    def collect(self) -> None:
        """Ends the small values that were destroyed since the last time."""
        if not WORDS[self._destroyed]:
            return
        base = self._take_destroyed()
        following = WORDS[base + _LIVE >> 3]
        if not following:
            self.forget(base)
            return
        bases = [base]
        while following:
            bases.append(following)
            following = WORDS[following + _LIVE >> 3]
        release_all(list(map(self._take_back, bases)))

    def add(self, value: ShardedValue, records: bytes) -> int:
        """Enters a value with the records of ``template``; returns the handle of shard 0."""
        size = len(records)
        try:
            base = self._free[size].pop()
        except (KeyError, IndexError):
            base = self._carve(size)
        else:
            if self._watched:
                check_poison(ctypes.string_at(base, size))
        BYTES[base : base + size] = records
        self.values[base] = value
        return base

    def _carve(self, size: int) -> int:
        with self._lock:
            self._free.setdefault(size, [])
            if self._next + size > self._end:
                slab_bytes = max(size, RECORD_BYTES * _RECORDS_PER_SLAB)
                slab = ctypes.create_string_buffer(slab_bytes + RECORD_BYTES)
                self._slabs.append(slab)
                self._next = -(-ctypes.addressof(slab) // RECORD_BYTES) * RECORD_BYTES
                self._end = self._next + slab_bytes
            base = self._next
            self._next += size
            return base

    def find(self, handle: int) -> tuple[ShardedValue, int]:
        """The value a handle belongs to, and the number of its shard."""
        back = WORDS[handle >> 3]
        try:
            return self.values[handle - back], back // RECORD_BYTES
        except KeyError:
            raise NeuronError(f"JAX used a buffer handle ({handle}) that was destroyed") from None

    def release_shard(self, handle: int) -> None:
        """Counts one shard as destroyed; forgets the value with the last."""
        base = handle - WORDS[handle >> 3]
        live = base + _LIVE >> 3
        with self._lock:
            left = WORDS[live] = WORDS[live] - 1
            last = left == 0
        if last:
            self.forget(base)

    def forget(self, base: int) -> None:
        """Ends a value all of whose shards are destroyed."""
        self._take_back(base).release()

    def _take_back(self, base: int) -> ShardedValue:
        """Gives the records of a value to others; the value, which is to be released."""
        value = self.values[base]
        size = len(value.spec.placement.ids) * RECORD_BYTES
        if value.event is None:  # nobody will mark it
            del self.values[base]
        else:
            with self._lock:
                del self.values[base]
        if self._watched:
            ctypes.memset(base, POISON, size)
        self._free[size].append(base)
        return value

    def mark(self, base: int, shards: range, field: str) -> None:
        """Sets the flag ``deleted`` or ``ready`` of some shards, which the caller holds."""
        where = offset(field)
        for shard in shards:
            BYTES[base + shard * RECORD_BYTES + where] = 1

    def mark_ready(self, base: int, value: ShardedValue) -> None:
        """Sets the flag ``ready`` of all shards of a value, unless it was forgotten meanwhile."""
        with self._lock:
            if self.values.get(base) is value:
                self.mark(base, range(len(value.spec.placement)), "ready")
