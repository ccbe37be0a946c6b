"""Tracks which bytes have been written, and through which buffer, to detect bad reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import MARK, UNWRITTEN, Location, Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.window import Array, Window
from neuronjax.program.operand import Buffer


class Written:
    """For every byte of storage, the number of the buffer through which it was written, or 0."""

    def __init__(self, reporter: Reporter, histories: bool = False) -> None:
        """`histories` remembers who wrote what another buffer has overwritten."""
        self._reporter = reporter
        self._histories = histories
        self._marks: dict[Storage, Array] = {}
        self._lost: dict[tuple[Storage, int], Array] = {}
        """Storage and owner -> the words that others have overwritten."""

    def _of(self, storage: Storage) -> Array:
        marks = self._marks.get(storage)
        if marks is None:
            marks = self._marks[storage] = np.zeros(storage.rows * storage.width, MARK)
        return marks

    def restart(self, held: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks all as unwritten but buffers that are `held`."""
        for marks in self._marks.values():
            marks.fill(0)
        self._lost.clear()
        for buffer, location in held:
            self._rows(buffer, location)[...] = location.owner

    def clear(self, buffers: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks buffers as unwritten again."""
        for buffer, location in buffers:
            self._lost.pop((location.storage, location.owner), None)
            self._rows(buffer, location)[...] = 0
            location.bytes_of(buffer)[...] = UNWRITTEN

    def leave(self, buffers: Iterable[tuple[Buffer, Location]]) -> None:
        """Marks what buffers still hold as unwritten; others may have written there since."""
        for buffer, location in buffers:
            self._lost.pop((location.storage, location.owner), None)
            marks = self._rows(buffer, location)
            own = marks == location.owner
            np.copyto(location.bytes_of(buffer), UNWRITTEN, where=own)
            np.copyto(marks, 0, where=own)

    def _rows(self, buffer: Buffer, location: Location) -> Array:
        storage = location.storage
        rows = self._of(storage).reshape(storage.rows, storage.width)
        first, last = location.address, location.address + buffer.extent
        return rows[location.row : location.row + buffer.partitions, first:last]

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Reports a read of bytes that nothing, or another buffer, has written."""
        marks = window.words(self._of(window.storage), values)
        wanted = marks if where is None else marks[where]
        full = _full(marks.dtype, window.owner)
        if np.all(wanted == full):
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
        lost = self._lost.get((window.storage, window.owner))
        if lost is None:
            return 0
        losses = window.words(lost, values)
        return int(np.count_nonzero((losses if where is None else losses[where])[wrong]))

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
        marks = window.words(self._of(window.storage), values)
        full = _full(marks.dtype, window.owner)
        place = ... if where is None else where
        if self._histories:
            self._remember(window, values, place, full)
        marks[place] = full

    def _remember(self, window: Window, values: Values, place: Any, full: int) -> None:
        """Keeps whose words the window is about to overwrite."""
        words = np.ascontiguousarray(window.words(self._of(window.storage), values)[place])
        if not np.any((words != 0) & (words != full)):
            return
        marks = words.view(MARK)
        for owner in set(np.unique(marks).tolist()) - {0, window.owner}:
            key = (window.storage, owner)
            if key not in self._lost:
                self._lost[key] = np.zeros_like(self._of(window.storage))
            lost = window.words(self._lost[key], values)
            lost[place] |= (marks == owner).astype(MARK).view(words.dtype)


def _full(word: np.dtype, owner: int) -> int:
    """The word of an element whose bytes all have the same owner."""
    mark = owner.to_bytes(MARK.itemsize, "little")
    return int.from_bytes(mark * (word.itemsize // MARK.itemsize), "little")
