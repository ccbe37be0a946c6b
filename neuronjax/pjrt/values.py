"""Buffers on the C side: fixed records in slabs, the N shards of a value side by side.

The layout of a record is shared with the machine code of ``native.py``. A handle is the address of
a record; the record of shard 0 counts the live shards, so that destroying a shard needs Python only
for the last of them, and an argument list of N shards of one value is recognised by its addresses.
Small values need not even that: machine code strings the records of those that are destroyed on a
list, Python notes their shards, and ``collect`` ends them before others are made or counted.

What a program on one core returns by its short way (``short_run_ir.py``) is *bare*: its record owns
the array and its type, and it becomes a ``ShardedValue`` when somebody asks for one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from neuronjax.errors import NeuronError
from neuronjax.pjrt.handles import BYTES, WORDS, check_poison, let_go, object_at
from neuronjax.runtime.memory import HbmLedger
from neuronjax.runtime.stress import POISON
from neuronjax.runtime.value import ShardedValue, ValueSpec, release_all

RECORD_BYTES = 64
RECORD = np.dtype(
    {
        "names": [
            "shard",  # number in its value
            "bytes",  # of device memory, in a small value on one core
            "live",  # shards, in the record of shard 0
            "spec",  # the ``ValueSpec`` of a bare value, else 0
            "device",
            "memory",
            "dims",  # in records that nobody has: the next of their list
            "value",  # the array of a bare value, or the ``ShardedValue`` if that is on one core
            "type",
            "deleted",
            "ready",
            "small",
            "rank",
            "layout",
        ],
        "formats": [
            *("u2", "u2", "i4"),
            *("u8", "u8", "u8", "u8", "u8"),
            *("i4", "u1", "u1", "u1", "u1", "u8"),
        ],
        "offsets": [0, 2, 4, 8, 16, 24, 32, 40, 48, 52, 53, 54, 55, 56],
        "itemsize": RECORD_BYTES,
    }
)
MOST_SHARDS = 1 << 16
_RECORDS_PER_SLAB = 4096

_STOCK = 256
"""Free records that machine code gets at a time."""

SMALL_BYTES = 4096
"""Memory of a shard that may be given back a little later than it is destroyed."""


def offset(field: str) -> int:
    """Byte offset of a field in the record."""
    fields = RECORD.fields
    assert fields is not None
    return fields[field][1]


NEXT = offset("dims")
"""Where a destroyed value's first record has that of the next one on its list."""
_SPEC, _VALUE, _DEVICE = map(offset, ("spec", "value", "device"))
SHARD, ONE_LIVE = MOST_SHARDS - 1, 1 << 8 * offset("live")
"""The number of the shard, and one shard that is not destroyed: both in a record's first word."""


def first_of(handle: int) -> int:
    """The handle of shard 0 of the value of a buffer."""
    return handle - (WORDS[handle >> 3] & SHARD) * RECORD_BYTES


def template(
    devices: Sequence[int],
    memories: Sequence[int],
    dims: int,
    rank: int,
    element_type: int,
    layout: int,
    small: bool = False,
    hbm_bytes: int = 0,
) -> bytes:
    """The records of a fresh value with a shard on each of ``devices`` (handles)."""
    records = np.zeros(len(devices), RECORD)
    records["shard"] = np.arange(len(devices))
    records["live"][0] = len(devices)
    records["device"] = devices
    records["memory"] = memories
    records["dims"] = dims
    records["rank"] = rank
    records["type"] = element_type
    records["layout"] = layout
    records["small"] = small
    if small and len(devices) == 1:
        records["bytes"] = hbm_bytes
    return records.tobytes()


def ready_template(records: bytes) -> bytes:
    """The records of a template, for a value that is ready from the start."""
    table = np.frombuffer(records, RECORD).copy()
    table["ready"] = 1
    return table.tobytes()


def bare_template(records: bytes, spec: ValueSpec) -> bytes:
    """The record of a template for a bare value; it refers to ``spec``, which the caller keeps."""
    table = np.frombuffer(ready_template(records), RECORD).copy()
    table["spec"] = id(spec)
    return table.tobytes()


class Bare(Protocol):
    """The bare values that machine code has made, and the free records that it has for more."""

    destroyed: int
    """Number of the word that is 0 if no bare value waits to be ended."""
    free: int
    """Number of the word with the count of free records."""
    dressed: int
    """Bare values that have become a ``ShardedValue``."""
    ledgers: dict[int, HbmLedger]
    """Handle of a device -> where its memory is counted."""

    def count(self) -> int:
        """Bare values there are."""

    def end_destroyed(self) -> int:
        """Ends the bare values that were destroyed."""

    def give(self, record: int) -> int:
        """Adds a free record."""


class ValueTable:
    """Values by the address of their first record."""

    def __init__(self, watched: bool = False) -> None:
        """``watched`` finds out who writes to records of values that were forgotten."""
        self.values: dict[int, ShardedValue] = {}
        self._watched = watched
        self._slabs: list[Any] = []
        self._free: dict[int, list[int]] = {}
        self.bare: Bare | None = None
        """How machine code makes and ends bare values; ``None`` if it makes none."""
        self._next = self._end = 0
        self.lock = threading.RLock()  # a collection inside it may end other values
        self._list: tuple[int, Callable[[], int]] | None = None
        self._destroyed_shards: list[int] = []
        self.note_destroyed = self._destroyed_shards.append
        """Takes the handle of a shard of a small value that Python was asked to destroy."""

    def use_list(self, head: int, take: Callable[[], int]) -> None:
        """Lets machine code string destroyed small values on a list of its own.

        ``head`` is the address of the word with the first of them, 0 if there are none. ``take``
        returns that and empties the list.
        """
        self._list = head >> 3, take

    def collect(self) -> None:
        """Ends the small values that were destroyed since the last time."""
        bare = self.bare
        if bare is not None and WORDS[bare.destroyed]:
            bare.end_destroyed()
        if self._destroyed_shards:
            release_all(list(map(self._take_back, self._count_destroyed())))
        if self._list is not None and WORDS[self._list[0]]:
            self._end_listed(self._list[1]())

    def _count_destroyed(self) -> list[int]:
        """Counts the shards noted as destroyed; the first records of values without any other.

        Shards of a value die one after the other, with few exceptions, so that values are counted
        rather than shards.
        """
        ended = []
        with self.lock:
            shards = self._destroyed_shards[:]
            del self._destroyed_shards[: len(shards)]
            at = 0
            while at < len(shards):
                base = first_of(shards[at])
                count = WORDS[base >> 3] // ONE_LIVE
                records = range(base, base + count * RECORD_BYTES, RECORD_BYTES)
                if sorted(shards[at : at + count]) == list(records):
                    ended.append(base)
                    at += count
                    continue
                if count == 1:
                    ended.append(base)
                WORDS[base >> 3] -= ONE_LIVE
                at += 1
        return ended

    def _end_listed(self, base: int) -> None:
        if not base:  # another thread took them meanwhile
            return
        following = WORDS[base + NEXT >> 3]
        if not following:
            self.forget(base)
            return
        bases = [base]
        while following:
            bases.append(following)
            following = WORDS[following + NEXT >> 3]
        release_all(list(map(self._take_back, bases)))

    def __len__(self) -> int:
        return len(self.values) + (0 if self.bare is None else self.bare.count())

    def get(self, base: int) -> ShardedValue | None:
        """The value whose shard 0 has a handle; ``None`` if that is no shard 0."""
        value = self.values.get(base)
        if value is None and self.bare is not None and WORDS[base + _SPEC >> 3]:
            return self._dress(base, self.bare)
        return value

    def _dress(self, base: int, bare: Bare) -> ShardedValue:
        """Makes a bare value one of the table. Machine code may look at the record between any two
        of the steps, and leaves it alone while it has no value."""
        with self.lock:
            value = self.values.get(base)
            if value is not None:
                return value
            at, of = base + _VALUE >> 3, base + _SPEC >> 3
            array, spec = WORDS[at], WORDS[of]
            made = ShardedValue(
                object_at(array), object_at(spec), bare.ledgers[WORDS[base + _DEVICE >> 3]]
            )
            self.values[base] = made
            WORDS[at] = WORDS[of] = 0
            WORDS[at] = id(made)
            bare.dressed += 1
        let_go(array)
        let_go(spec)
        return made

    def stock(self, records: int) -> None:
        """Sees to it that machine code has that many free records at least."""
        bare = self.bare
        if bare is not None and WORDS[bare.free] < records:
            for _ in range(max(records, _STOCK)):
                bare.give(self._record(RECORD_BYTES))

    def add(self, value: ShardedValue, records: bytes) -> int:
        """Enters a value with the records of ``template``; returns the handle of shard 0."""
        size = len(records)
        base = self._record(size)
        BYTES[base : base + size] = records
        self.values[base] = value
        if size == RECORD_BYTES:
            WORDS[base + _VALUE >> 3] = id(value)
        return base

    def _record(self, size: int) -> int:
        try:
            base = self._free[size].pop()
        except (KeyError, IndexError):
            return self._carve(size)
        if self._watched:
            check_poison(ctypes.string_at(base, size))
        return base

    def _carve(self, size: int) -> int:
        with self.lock:
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
        index = WORDS[handle >> 3] & SHARD
        base = handle - index * RECORD_BYTES
        value = self.values.get(base) or self.get(base)
        if value is None:
            raise NeuronError(f"JAX used a buffer handle ({handle}) that was destroyed")
        return value, index

    def destroy(self, handle: int) -> None:
        """Counts a shard as destroyed, and ends its value if that was the last."""
        base = first_of(handle)
        with self.lock:
            WORDS[base >> 3] -= ONE_LIVE
            left = WORDS[base >> 3] // ONE_LIVE
        if not left:
            self.forget(base)

    def forget(self, base: int) -> None:
        """Ends a value all of whose shards are destroyed."""
        self._take_back(base).release()

    def _take_back(self, base: int) -> ShardedValue:
        """Gives the records of a value to others; the value, which is to be released."""
        value = self.values.get(base) or self.get(base)
        assert value is not None
        size = len(value.spec.placement.ids) * RECORD_BYTES
        if value.event is None:  # nobody will mark it
            del self.values[base]
        else:
            with self.lock:
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
        with self.lock:
            if self.values.get(base) is value:
                self.mark(base, range(len(value.spec.placement)), "ready")
