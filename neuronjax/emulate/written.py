"""Which bytes have been written: reads of others are found."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import UNWRITTEN, Location, Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.window import Array, Window
from neuronjax.program.operand import Buffer


class Written:
    """A mark for each byte of each storage."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._marks: dict[Storage, Array] = {}

    def _of(self, storage: Storage) -> Array:
        marks = self._marks.get(storage)
        if marks is None:
            marks = self._marks[storage] = np.zeros(storage.rows * storage.width, np.uint8)
        return marks

    def fill(self, buffer: Buffer, location: Location) -> None:
        """Marks a whole buffer as written."""
        self._rows(buffer, location)[...] = 1

    def clear(self, buffers: Iterable[tuple[Buffer, Location]]) -> None:
        """Makes buffers hold nothing again."""
        for buffer, location in buffers:
            self._rows(buffer, location)[...] = 0
            location.bytes_of(buffer)[...] = UNWRITTEN

    def _rows(self, buffer: Buffer, location: Location) -> Array:
        storage = location.storage
        rows = self._of(storage).reshape(storage.rows, storage.width)
        first, last = location.address, location.address + buffer.extent
        return rows[location.row : location.row + buffer.partitions, first:last]

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Reports a read where nothing has been written."""
        marks = window.words(self._of(window.storage), values)
        wanted = marks if where is None else marks[where]
        full = _full(window.itemsize)
        if np.all(wanted == full):
            return
        missing = int(np.count_nonzero(wanted != full))
        message = (
            f"{window.path}: {window.field} reads {missing} of {wanted.size} elements of"
            f" {window.access.buffer.name} that nothing has written. Write them before, or memset."
        )
        rank = self._reporter.rank
        self._reporter.report(Finding(Kind.UNINITIALISED, rank, (window.path,), message))

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        """Marks what is written."""
        marks = window.words(self._of(window.storage), values)
        marks[... if where is None else where] = _full(window.itemsize)


def _full(itemsize: int) -> int:
    """A word of marked bytes."""
    return int.from_bytes(b"\x01" * itemsize, "little")
