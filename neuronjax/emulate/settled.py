"""Accesses to a storage whose bytes are all known to be marked as written by their own buffer."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from neuronjax.emulate.memory import Area, Location
from neuronjax.emulate.window import Array, Span, Window
from neuronjax.program.operand import Buffer

_MOST_SPANS = 1 << 14
"""Settled spans of a buffer that are remembered."""


class Settled:
    """The spans that are settled, by buffer; buffers go by `owner`."""

    def __init__(self) -> None:
        self._spans: defaultdict[int, set[Span]] = defaultdict(set)
        #: Owner -> where all of it is settled.
        self._whole: dict[int, Area] = {}
        self._areas = _Areas()

    def add_whole(self, buffer: Buffer, location: Location) -> None:
        """Notes that all of a buffer is settled."""
        self._whole[location.owner] = location.area(buffer)
        self._areas.add(location.owner, self._whole[location.owner])

    def add(self, window: Window, span: Span) -> None:
        """Notes that what a window touches is settled."""
        self._areas.add(window.owner, window.area)
        spans = self._spans[window.owner]
        if len(spans) >= _MOST_SPANS:
            spans.clear()
        spans.add(span)

    def has(self, window: Window, span: Span) -> bool:
        """Whether what a window touches is settled."""
        owner = window.owner
        if span in self._spans[owner]:
            return True
        return owner in self._whole and self._whole[owner] == window.area

    def unsettle_others(self, window: Window) -> None:
        """Notes that a window's buffer is written: what it meets is settled no longer."""
        self._areas.add(window.owner, window.area)
        for owner in self._areas.neighbours[window.owner]:
            self._spans.pop(owner, None)
            self._whole.pop(owner, None)


class _Areas:
    """The areas of buffers, and which buffers meet."""

    def __init__(self) -> None:
        #: Owner -> others that it has bytes in common with.
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        self._known: set[tuple[int, Area]] = set()
        #: Columns: an area and its owner.
        self._table: Array = np.zeros((5, 16), np.int64)

    def add(self, owner: int, area: Area) -> None:
        """Notes that a buffer lies in an area, perhaps in others as well."""
        if (owner, area) in self._known:
            return
        count = len(self._known)
        top, bottom, left, right, owners = self._table[:, :count]
        first_row, last_row, first, last = area
        meets = (top < last_row) & (bottom > first_row) & (left < last) & (right > first)
        others = set(owners[meets & (owners != owner)].tolist())
        self.neighbours[owner] |= others
        for other in others:
            self.neighbours[other].add(owner)
        if count == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self._table[:, count] = *area, owner
        self._known.add((owner, area))
