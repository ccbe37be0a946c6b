"""Which elements a write is sure to fill while the loops about it run.

A tile lives across the iterations of a loop if an iteration reads what it has not written itself.
Intervals of elements are compared only where what they are relative to agrees: the same slot,
and the same dependence on the loops that stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.program.affine import Affine, Interval
from neuronjax.program.operand import Access, RegisterOffset

Key = tuple[Any, ...]
"""What an interval is relative to."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Partitions and elements about a symbolic start."""

    key: Key
    partitions: Interval
    elements: Interval


def touched(access: Access, trips: Mapping[str, int | None]) -> Reached | None:
    """All that `access` may reach while the loops `trips` run; None: nobody knows."""
    return _reached(access, trips, dense=False)


def filled(access: Access, trips: Mapping[str, int | None]) -> Reached | None:
    """What `access` reaches without a gap while the loops `trips` run; None: there may be gaps."""
    return _reached(access, trips, dense=True)


def _reached(access: Access, trips: Mapping[str, int | None], *, dense: bool) -> Reached | None:
    if isinstance(access.offset, RegisterOffset):
        return None
    moving = {name for name, _ in (*access.slot.terms, *access.partition.terms)}
    steps = [(dim.stride, dim.size) for dim in access.dims]
    fixed = []
    for name, factor in access.offset.terms:
        if name not in trips or name in moving:
            fixed.append((name, factor))
            continue
        count = trips[name]
        if count is None:
            return None
        steps.append((factor, count))
    elements = _hull(steps, access.offset.base, dense=dense)
    if elements is None:
        return None
    low = access.partition.base
    key = (_slot(access), access.partition.terms, tuple(fixed))
    return Reached(key, Interval(low, low + access.partitions - 1), elements)


def _slot(access: Access) -> Affine:
    """The slot, for a tile with one the same whatever it is called."""
    return Affine() if access.buffer.slots == 1 else access.slot


def _hull(steps: list[tuple[int, int]], base: int, *, dense: bool) -> Interval | None:
    low = high = base
    for stride, size in sorted(steps, key=lambda step: abs(step[0])):
        if dense and size > 1 and abs(stride) > high - low + 1:
            return None
        end = stride * (size - 1)
        low, high = low + min(0, end), high + max(0, end)
    return Interval(low, high)


@dataclass(slots=True)
class Filled:
    """What has been written so far."""

    found: list[Reached] = field(default_factory=list)

    def add(self, reached: Reached | None) -> None:
        """Takes note of what a write fills."""
        if reached is not None and reached not in self.found:
            self.found.append(reached)

    def has(self, wanted: Reached | None) -> bool:
        """Whether all of it has been written; never true where nobody knows."""
        if wanted is None:
            return False
        parts = sorted(
            each.elements
            for each in self.found
            if each.key == wanted.key
            and each.partitions.low <= wanted.partitions.low
            and each.partitions.high >= wanted.partitions.high
        )
        reached = wanted.elements.low
        for low, high in parts:
            if low > reached:
                return False
            reached = max(reached, high + 1)
            if reached > wanted.elements.high:
                return True
        return False
