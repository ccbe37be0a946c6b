"""Tracks which bytes have been written, and through which buffer, to detect bad reads.

A byte has a mark. What an access has found or left as its own stays so until another buffer that
lies there is written or cleared; until then the access is settled, and marks are not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import MARK, UNWRITTEN, Location, Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.settled import Settled
from neuronjax.emulate.window import Array, Window
from neuronjax.program.operand import Buffer


class Written:
    """The number of the buffer through which each byte of storage was written, or 0."""

    def __init__(self, reporter: Reporter, histories: bool = False) -> None:
        """`histories` remembers what buffers have written, which others may overwrite."""
        self._reporter = reporter
        self._histories = histories
        self._marks: dict[Storage, Array] = {}
        self._writes: dict[tuple[Storage, int], dict[tuple[Window, int], Array | None]] = {}
        """Storage and owner -> windows and first bytes through which it was written -> where in
        them; None: everywhere."""
        self._settled: defaultdict[Storage, Settled] = defaultdict(Settled)

    def _of(self, storage: Storage) -> Array:
        marks = self._marks.get(storage)
        if marks is None:
            marks = self._marks[storage] = np.zeros(storage.rows * storage.width, MARK)
        return marks

    def restart(self, held: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks all as unwritten but buffers that are `held`."""
        for marks in self._marks.values():
            marks.fill(0)
        self._writes.clear()
        self._settled.clear()
        for buffer, location in held:
            self._rows(buffer, location)[...] = location.owner
            self._settled[location.storage].add_whole(buffer, location)

    def clear(self, buffers: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks buffers as unwritten again."""
        for buffer, location in buffers:
            self._writes.pop((location.storage, location.owner), None)
            self._settled.pop(location.storage, None)
            self._rows(buffer, location)[...] = 0
            location.bytes_of(buffer)[...] = UNWRITTEN

    def leave(self, buffers: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks what buffers still hold as unwritten; others may have written there since."""
        for buffer, location in buffers:
            self._writes.pop((location.storage, location.owner), None)
            self._settled.pop(location.storage, None)
            marks, contents = self._rows(buffer, location), location.bytes_of(buffer)
            own = marks == location.owner
            if own.all():  # as almost always; choosing bytes takes several times as long
                contents[...], marks[...] = UNWRITTEN, 0
            else:
                np.copyto(contents, UNWRITTEN, where=own)
                np.copyto(marks, 0, where=own)

    def _rows(self, buffer: Buffer, location: Location) -> Array:
        storage = location.storage
        rows = self._of(storage).reshape(storage.rows, storage.width)
        first, last = location.address, location.address + buffer.extent
        return rows[location.row : location.row + buffer.partitions, first:last]

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Reports a read of bytes that nothing, or another buffer, has written."""
        settled, span = self._settled[window.storage], window.span(values)
        if settled.has(window, span):
            return
        marks = window.words(self._of(window.storage), values)
        wanted = marks if where is None else marks[where]
        full = _full(marks.dtype, window.owner)
        if np.all(wanted == full):
            if where is None:
                settled.add(window, span)
            return
        wrong = wanted != full
        lost = self._overwritten(window, values, where, wanted, wrong)
        count = lost or np.count_nonzero(wrong)
        kind = Kind.OVERWRITTEN if lost else Kind.UNINITIALISED
        history = "another buffer has overwritten" if lost else "nothing has written"
        remedy = "Move one of them, or declare an alias" if lost else "Write them first"
        message = (
            f"{window.path}: {window.field} reads {count} of {wanted.size} elements of"
            f" {window.access.buffer.name} that {history}. {remedy}."
        )
        self._reporter.report(Finding(kind, self._reporter.rank, (window.path,), message))

    def _overwritten(
        self, window: Window, values: Values, where: Array | None, words: Array, wrong: Array
    ) -> int:
        """How many of the `wrong` elements another buffer has overwritten."""
        if not self._histories:
            count = int(np.count_nonzero(wrong))
            return count if np.all(words[wrong] != 0) else 0
        writes = self._writes.get((window.storage, window.owner))
        if not writes:
            return 0
        marks = np.zeros(self._of(window.storage).size, MARK)
        for (written, first), chosen in writes.items():
            there = written.words_from(marks, first)
            there[... if chosen is None else chosen] = np.iinfo(there.dtype).max
        own = window.words(marks, values)
        return int(np.count_nonzero((own if where is None else own[where])[wrong]))

    def ends(self, buffer: Buffer, location: Location) -> None:
        """Reports bytes of a result that are still unwritten at the end of the program."""
        marks = self._rows(buffer, location)
        missing = int(np.count_nonzero(marks != location.owner))
        if missing:
            message = (
                f"{missing} of {marks.size} bytes of the result {buffer.name} have not been"
                " written. Store every part of it."
            )
            self._reporter.report(
                Finding(Kind.UNINITIALISED, self._reporter.rank, (buffer.name,), message)
            )

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        """Marks bytes as written."""
        settled, span = self._settled[window.storage], window.span(values)
        if settled.has(window, span):
            return
        settled.unsettle_others(window)
        if where is None:
            settled.add(window, span)
        marks = window.words(self._of(window.storage), values)
        if self._histories:
            known = self._writes.setdefault((window.storage, window.owner), {})
            place = window, span[0]
            before = known.get(place, False)
            known[place] = None if where is None or before is None else before | where
        marks[... if where is None else where] = _full(marks.dtype, window.owner)


def _full(word: np.dtype, owner: int) -> int:
    """The word of an element whose bytes all have the same owner."""
    mark = owner.to_bytes(MARK.itemsize, "little")
    return int.from_bytes(mark * (word.itemsize // MARK.itemsize), "little")
