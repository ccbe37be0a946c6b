"""The accesses to a storage that some stream may not have seen yet, and which of them meet.

A log has one record for each window, place, stream and direction: the latest event that made this
access. Two accesses meet if they have a byte in common. The rectangles of bytes around them are
compared for all records at once; what lies between the bytes of a window is looked at only where
rectangles overlap, once for each distance between two windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from neuronjax.emulate.window import Array, Window
from neuronjax.program.strided import is_sum

_LEAST_ROOM = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """A window whose first element begins at byte `start` of its storage.

    `where` selects elements, as a `Watcher` has it; None: all of them.
    """

    window: Window
    start: int
    where: Array | None = None

    @property
    def rectangle(self) -> tuple[int, int, int, int]:
        """First and last row, first and last byte within a row, of the storage."""
        row, column = divmod(self.start, self.window.storage.width)
        low, high = self.window.form.reach
        return row, row + self.window.shape[0] - 1, column + low, column + high

    @property
    def is_dense(self) -> bool:
        """Whether it touches every byte of its rectangle."""
        return self.where is None and self.window.form.is_dense

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        """Strides in bytes, and sizes, of the bytes within a row."""
        window = self.window
        pairs = zip(window.strides[1:], window.shape[1:], strict=True)
        return (*((abs(stride), size) for stride, size in pairs if stride), (1, window.itemsize))

    def bytes_in(self, flags: Array, first_row: int, first_byte: int) -> Array:
        """The touch's bytes in an array of rows of flags: [*shape of the window, bytes of an
        element]."""
        window, width = self.window, flags.shape[1]
        row, column = divmod(self.start, window.storage.width)
        start = (row - first_row) * width + column - first_byte
        shape, strides = (*window.shape, window.itemsize), (width, *window.strides[1:], 1)
        return np.ndarray(shape, flags.dtype, flags.data, start, strides)

    def contents(self) -> Array:
        """The bytes that it touches, in the storage."""
        storage = self.window.storage
        own = self.bytes_in(storage.flat.reshape(storage.rows, storage.width), 0, 0)
        return own if self.where is None else own[self.where]

    def meets(self, other: Touch) -> bool:
        """Whether both have a byte in common, if their rectangles have."""
        if self.is_dense and other.is_dense:
            return True
        if self.where is None and other.where is None:
            _, _, _, last = self.rectangle
            _, _, first, _ = other.rectangle
            meets = is_sum((*self.terms, *other.terms), last - first)
            if meets is not None:
                return meets
        return self._meets_by_byte(other)

    def _meets_by_byte(self, other: Touch) -> bool:
        return self.has_some(True, other)

    def has_some(self, chosen: Array | bool, other: Touch) -> bool:
        """Whether some of the `chosen` bytes, of its `contents`, are in another one as well."""
        rectangles = np.array((self.rectangle, other.rectangle))
        row, _, byte, _ = (int(bound) for bound in rectangles.min(0))
        _, last_row, _, last_byte = (int(bound) for bound in rectangles.max(0))
        flags = np.zeros((last_row - row + 1, last_byte - byte + 1), np.bool_)
        own, others = self.bytes_in(flags, row, byte), other.bytes_in(flags, row, byte)
        own[... if self.where is None else self.where] = chosen
        return bool((others if other.where is None else others[other.where]).any())


@dataclass
class Log:
    """The records of a storage."""

    _touches: list[Touch] = field(default_factory=list)
    #: Window, start, stream and direction -> number of the record.
    _numbers: dict[tuple[Window, int, int, bool], int] = field(default_factory=dict)
    #: By record: event, stream, whether it writes, and the rectangle.
    _table: Array = field(default_factory=lambda: np.zeros((7, _LEAST_ROOM), np.int64))
    #: Two windows without masks and the distance between them -> whether they meet.
    _met: dict[tuple[Window, Window, int], bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._touches)

    def clear(self) -> None:
        """Drops all records."""
        self._touches.clear()
        self._numbers.clear()

    def add(
        self, touch: Touch, stream: int, event: int, *, writes: bool, keep: Callable[[int], bool]
    ) -> None:
        """Records what an event of a stream touches. When there is no room left, records of events
        that are not to `keep` are dropped."""
        key = (touch.window, touch.start, stream, writes)
        number = self._numbers.get(key) if touch.where is None else None
        if number is not None:
            self._table[0, number] = event
            return
        if len(self._touches) == self._table.shape[1]:
            self._make_room(keep)
        number = len(self._touches)
        self._table[:, number] = (event, stream, writes, *touch.rectangle)
        self._touches.append(touch)
        if touch.where is None:
            self._numbers[key] = number

    def _make_room(self, keep: Callable[[int], bool]) -> None:
        kept = [number for number, event in enumerate(self._table[0].tolist()) if keep(event)]
        table = np.zeros((7, max(_LEAST_ROOM, 2 * len(kept))), np.int64)
        table[:, : len(kept)] = self._table[:, kept]
        self._table = table
        self._touches = [self._touches[number] for number in kept]
        renumbered = {number: new for new, number in enumerate(kept)}
        self._numbers = {
            key: renumbered[number] for key, number in self._numbers.items() if number in renumbered
        }

    def unseen(
        self, touch: Touch, stream: int, seen: Array, *, writes: bool
    ) -> Iterator[tuple[int, bool, Touch]]:
        """Events of other streams, the latest first, that meet an access and are later than the
        last event `seen` of their stream, whether they write, and what they touch. Reads do not
        meet reads."""
        events, streams, directions, row, last_row, byte, last_byte = self._table[
            :, : len(self._touches)
        ]
        first, last, left, right = touch.rectangle
        wanted = (events > seen[streams]) & (streams != stream)
        wanted &= (row <= last) & (last_row >= first) & (byte <= right) & (last_byte >= left)
        if not writes:
            wanted &= directions != 0
        (numbers,) = np.nonzero(wanted)
        for number in sorted(numbers.tolist(), key=lambda number: -int(events[number])):
            if self._meet(touch, self._touches[number]):
                yield int(events[number]), bool(directions[number]), self._touches[number]

    def _meet(self, touch: Touch, other: Touch) -> bool:
        if touch.where is not None or other.where is not None:
            return touch.meets(other)
        key = (touch.window, other.window, touch.start - other.start)
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = touch.meets(other)
        return met
