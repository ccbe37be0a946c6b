"""Addresses for things of a size, so that none that live at the same time overlap.

The greatest are placed first, each where the smallest gap takes it. Greedy best fit comes within a
few per cent of optimal for such problems (Sekiyama et al., "Profile-guided memory optimization for
deep neural networks", 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuronjax.lower.timeline import Lives, meet


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes of a range of partitions (both ends included), wanted during `lives`."""

    size: int
    alignment: int
    lanes: tuple[int, int]
    lives: Lives

    def may_meet(self, other: Piece) -> bool:
        """Whether both are there at the same time, on a common partition."""
        return (
            self.lanes[0] <= other.lanes[1]
            and other.lanes[0] <= self.lanes[1]
            and meet(self.lives, other.lives)
        )

    def is_beside(self, other: Piece) -> bool:
        """Whether both lie on a common partition."""
        return self.lanes[0] <= other.lanes[1] and other.lanes[0] <= self.lanes[1]


Placed = list[tuple[int, Piece]]
"""Pieces with their addresses."""


def place(pieces: Sequence[Piece], fixed: Placed, limit: int, *, reuse: bool) -> list[int] | None:
    """Addresses below `limit` for all pieces; None: they do not fit.

    With `reuse`, pieces of which only one is there at a time share memory.
    """
    placed: Placed = list(fixed)
    found = [0] * len(pieces)
    for index in sorted(range(len(pieces)), key=lambda each: -pieces[each].size):
        piece = pieces[index]
        clash = Piece.may_meet if reuse else Piece.is_beside
        taken = [(at, at + other.size) for at, other in placed if clash(piece, other)]
        at = _gap(taken, piece, limit)
        if at is None:
            return None
        found[index] = at
        placed.append((at, piece))
    return found


def place_sparingly(pieces: Sequence[Piece], fixed: Placed, limit: int) -> list[int] | None:
    """Addresses for all pieces that share memory only as far as they must."""
    return (
        place(pieces, fixed, limit, reuse=False)
        or _place_graded(pieces, fixed, limit)
        or place(pieces, fixed, limit, reuse=True)
    )


def _place_graded(pieces: Sequence[Piece], fixed: Placed, limit: int) -> list[int] | None:
    """The greatest alone as long as they fit, the others where nothing else is just then."""
    placed: Placed = list(fixed)
    found = [0] * len(pieces)
    for index in sorted(range(len(pieces)), key=lambda each: -pieces[each].size):
        piece = pieces[index]
        at = None
        for clash in (Piece.is_beside, Piece.may_meet):
            taken = [(begin, begin + other.size) for begin, other in placed if clash(piece, other)]
            at = _gap(taken, piece, limit)
            if at is not None:
                break
        if at is None:
            return None
        found[index] = at
        placed.append((at, piece))
    return found


def _gap(taken: Iterable[tuple[int, int]], piece: Piece, limit: int) -> int | None:
    """The start of the smallest gap that takes the piece; None: there is none."""
    best: tuple[int, int] | None = None
    start = 0
    for begin, end in [*sorted(taken), (limit, limit)]:
        at = -(-start // piece.alignment) * piece.alignment
        room = begin - at
        if room >= piece.size and (best is None or room < best[0]):
            best = (room, at)
        start = max(start, end)
    return None if best is None else best[1]


def peak(placed: Placed) -> int:
    """The end of the last byte that is taken."""
    return max((at + piece.size for at, piece in placed), default=0)
