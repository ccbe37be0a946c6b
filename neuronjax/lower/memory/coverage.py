"""Which elements writes are sure to fill while the loops about them run.

A tile lives across the iterations of a loop if an iteration reads what it has not written itself.
Intervals of elements are compared only where what they are relative to agrees: the same slot,
and the same dependence on the loops that stand still. A write with gaps is as many intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.program.affine import Interval
from neuronjax.program.footprint import Footprint, footprint
from neuronjax.program.operand import Access, Buffer

Trips = Mapping[str, int | None]
Key = tuple[Any, ...]
"""What an interval is relative to."""

_MOST_INTERVALS = 64


@dataclass(frozen=True, slots=True)
class Box:
    """Partitions and elements about a symbolic start."""

    key: Key
    partitions: Interval
    elements: Interval


def whole(buffer: Buffer) -> Box:
    """All of a buffer of one slot."""
    access = Access(buffer=buffer, partitions=buffer.partitions)
    lanes = Interval(0, buffer.partitions - 1)
    return Box(_key(footprint(access, {})), lanes, Interval(0, buffer.elements - 1))


def touched(access: Access, trips: Trips) -> Box | None:
    """All that `access` may touch while the loops `trips` run; None: nobody knows."""
    seen = _seen(access, trips)
    if seen.elements is None:
        return None
    return Box(_key(seen), _lanes(seen), seen.elements.hull)


def filled(access: Access, trips: Trips) -> tuple[Box, ...]:
    """What `access` is sure to touch while the loops `trips` run; nothing: nobody knows, or it is
    in too many pieces."""
    seen = _seen(access, trips)
    intervals = () if seen.elements is None else seen.elements.runs(_MOST_INTERVALS) or ()
    return tuple(Box(_key(seen), _lanes(seen), interval) for interval in intervals)


class Coverage:
    """What accesses touch and fill while loops run, found once for each."""

    def __init__(self) -> None:
        #: id of an access, and the trips of loops -> the access, and what it touches and fills.
        self._touched: dict[Key, tuple[Access, Box | None]] = {}
        self._filled: dict[Key, tuple[Access, tuple[Box, ...]]] = {}

    def touched(self, access: Access, trips: Trips) -> Box | None:
        """See `touched`."""
        key = (id(access), *trips.items())
        known = self._touched.get(key)
        if known is None:
            known = self._touched[key] = access, touched(access, trips)
        return known[1]

    def filled(self, access: Access, trips: Trips) -> tuple[Box, ...]:
        """See `filled`."""
        key = (id(access), *trips.items())
        known = self._filled.get(key)
        if known is None:
            known = self._filled[key] = access, filled(access, trips)
        return known[1]


def _seen(access: Access, trips: Trips) -> Footprint:
    """The footprint of an access while loops stand still that lead to other slots or partitions."""
    moving = {*access.slot.variables, *access.partition.variables}
    if moving:
        trips = {name: count for name, count in trips.items() if name not in moving}
    return footprint(access, trips)


def _key(seen: Footprint) -> Key:
    # The slot of a tile with one is the same whatever it is called.
    slot = None if seen.slots == 1 else seen.slot
    return slot, seen.partitions.standing, seen.standing


def _lanes(seen: Footprint) -> Interval:
    return Interval(seen.partitions.low, seen.partitions.high)


@dataclass(slots=True)
class Filled:
    """What has been written so far."""

    boxes: dict[Key, dict[tuple[Interval, Interval], None]] = field(default_factory=dict)

    def add(self, boxes: Iterable[Box]) -> None:
        """Takes note of what a write fills."""
        for box in boxes:
            self.boxes.setdefault(box.key, {})[box.partitions, box.elements] = None

    def has(self, wanted: Box | None) -> bool:
        """Whether all of it has been written; never true where nobody knows."""
        if wanted is None:
            return False
        parts = sorted(
            elements
            for partitions, elements in self.boxes.get(wanted.key, ())
            if partitions.low <= wanted.partitions.low and partitions.high >= wanted.partitions.high
        )
        reached = wanted.elements.low
        for low, high in parts:
            if low > reached:
                return False
            reached = max(reached, high + 1)
            if reached > wanted.elements.high:
                return True
        return False
