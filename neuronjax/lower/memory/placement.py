"""Addresses for things of a size, so that none that live at the same time overlap.

The greatest are placed first, each where the smallest gap takes it. Greedy best fit comes within a
few per cent of optimal for such problems (Sekiyama et al., "Profile-guided memory optimization for
deep neural networks", 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.lower.memory.occupancy import Lives, meet


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes of a range of partitions (both ends included), wanted during `lives`."""

    size: int
    alignment: int
    lanes: tuple[int, int]
    lives: Lives


Placed = list[tuple[int, Piece]]
"""Pieces with their addresses."""
Pause = int | None
"""How long memory is not wanted before and behind a piece that takes it; None: it never is."""


class _Table:
    """Pieces that have addresses, in arrays and in the order of their beginnings and ends: which of
    them another one clashes with."""

    def __init__(self, fixed: Placed, room: int) -> None:
        self._pieces: list[Piece] = []
        self._rows = np.zeros((7, len(fixed) + room), np.int64)
        for at, piece in fixed:
            self.add(at, piece)

    def add(self, at: int, piece: Piece) -> None:
        first, last = (piece.lives[0][0], piece.lives[-1][1]) if piece.lives else (1, 0)
        row = (at, at + piece.size, *piece.lanes, first, last, len(piece.lives))
        count = len(self._pieces)
        begin, end = self._rows[:2, :count]
        low, high = begin.searchsorted(at), begin.searchsorted(at, "right")
        place = int(low + end[low:high].searchsorted(at + piece.size, "right"))
        self._rows[:, place + 1 : count + 1] = self._rows[:, place:count]
        self._rows[:, place] = row
        self._pieces.insert(place, piece)

    def taken(self, piece: Piece, pause: Pause) -> tuple[np.ndarray, np.ndarray]:
        """The beginnings of bytes that the piece must not have, in order, and their ends."""
        begin, end, low, high, first, last, parts = self._rows[:, : len(self._pieces)]
        clash = (low <= piece.lanes[1]) & (piece.lanes[0] <= high)
        if pause is not None:
            if not piece.lives:
                return begin[:0], end[:0]
            lives = tuple((start - pause, stop + pause) for start, stop in piece.lives)
            clash &= (first <= lives[-1][1]) & (lives[0][0] <= last)
            unsure = clash if len(piece.lives) != 1 else clash & (parts != 1)
            for index in unsure.nonzero()[0].tolist():
                clash[index] = meet(lives, self._pieces[index].lives)
        return begin[clash], end[clash]


def place(pieces: Sequence[Piece], fixed: Placed, limit: int, *, reuse: bool) -> list[int] | None:
    """Addresses below `limit` for all pieces; None: they do not fit.

    With `reuse`, pieces of which only one is there at a time share memory.
    """
    return _placed(pieces, fixed, limit, (0 if reuse else None,))


def place_sparingly(
    pieces: Sequence[Piece],
    fixed: Placed,
    limit: int,
    near: Sequence[tuple[int, Piece]] = (),
    pauses: Sequence[int] = (),
) -> list[int] | None:
    """Addresses for all pieces that share memory only as far as they must.

    Pieces that fit side by side stay off those that are `near`, the greatest first. Of memory that
    is shared, they prefer what is not wanted for the longest of the `pauses` before and behind.
    """
    alone = None
    if _may_fit(pieces, limit):
        alone = _placed(pieces, fixed, limit, (None,), near) if near else None
        alone = alone or place(pieces, fixed, limit, reuse=False)
    if alone is not None:
        return alone
    # The greatest alone if possible; else all with as long a pause as leaves room for the others.
    ways = [(None, *pauses, 0), *((*pauses[first:], 0) for first in range(len(pauses) + 1))]
    placed = (_placed(pieces, fixed, limit, way) for way in ways)
    return next((addresses for addresses in placed if addresses is not None), None)


def _may_fit(pieces: Sequence[Piece], limit: int) -> bool:
    """Whether pieces could lie side by side: on each of the partitions where some begin."""
    return all(
        sum(piece.size for piece in pieces if piece.lanes[0] <= lane <= piece.lanes[1]) <= limit
        for lane in {piece.lanes[0] for piece in pieces}
    )


def _placed(
    pieces: Sequence[Piece],
    fixed: Placed,
    limit: int,
    pauses: tuple[Pause, ...],
    near: Sequence[tuple[int, Piece]] = (),
) -> list[int] | None:
    """Addresses, each with the first of the pauses for which there is room.

    Before these, room is looked for that is not `near` either.
    """
    table = _Table(fixed, len(pieces))
    apart = _Table([*fixed, *near], len(pieces)) if near else None
    addresses = [0] * len(pieces)
    for index in sorted(range(len(pieces)), key=lambda at: -pieces[at].size):
        piece = pieces[index]
        gaps = (_gap(table.taken(piece, pause), piece, limit) for pause in pauses)
        at = None if apart is None else _gap(apart.taken(piece, None), piece, limit)
        at = next((gap for gap in gaps if gap is not None), None) if at is None else at
        if at is None:
            return None
        addresses[index] = at
        table.add(at, piece)
        if apart is not None:
            apart.add(at, piece)
    return addresses


def _gap(taken: tuple[np.ndarray, np.ndarray], piece: Piece, limit: int) -> int | None:
    """The start of the smallest gap that takes the piece; None: there is none."""
    begin, end = taken
    at = np.zeros(len(end) + 1, np.int64)
    np.maximum.accumulate(end, out=at[1:])
    if piece.alignment > 1:
        at = -(-at // piece.alignment) * piece.alignment
    room = np.full(len(at), limit)
    room[:-1] = begin
    room -= at
    fitting = np.flatnonzero(room >= piece.size)
    return int(at[fitting[np.argmin(room[fitting])]]) if fitting.size else None


def peak(placed: Placed) -> int:
    """The end of the last byte that is taken."""
    return max((at + piece.size for at, piece in placed), default=0)
