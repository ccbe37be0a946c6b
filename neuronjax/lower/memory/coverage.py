"""Which elements a write is sure to fill while the loops about it run.

A tile lives across the iterations of a loop if an iteration reads what it has not written itself.
Intervals of elements are compared only where what they are relative to agrees: the same slot,
and the same dependence on the loops that stand still. A write with gaps is as many intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.program.affine import Affine, Interval
from neuronjax.program.operand import Access, RegisterOffset

Key = tuple[Any, ...]
"""What an interval is relative to."""
_Step = tuple[int, int]
"""A stride and a size: a dimension of a walk, or a loop."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Partitions and elements about a symbolic start."""

    key: Key
    partitions: Interval
    elements: Interval


_MOST_INTERVALS = 64


def touched(access: Access, trips: Mapping[str, int | None]) -> Reached | None:
    """All that `access` may reach while the loops `trips` run; None: nobody knows."""
    reached = _reached(access, trips, _hull)
    return reached[0] if reached else None


def filled(access: Access, trips: Mapping[str, int | None]) -> tuple[Reached, ...]:
    """What `access` is sure to reach while the loops `trips` run; nothing: nobody knows."""
    return _reached(access, trips, _intervals)


def _reached(
    access: Access,
    trips: Mapping[str, int | None],
    elements: Callable[[list[_Step], int], list[Interval]],
) -> tuple[Reached, ...]:
    if isinstance(access.offset, RegisterOffset):
        return ()
    moving = {name for name, _ in (*access.slot.terms, *access.partition.terms)}
    steps = [(dim.stride, dim.size) for dim in access.dims]
    fixed = []
    for name, factor in access.offset.terms:
        if name not in trips or name in moving:
            fixed.append((name, factor))
            continue
        count = trips[name]
        if count is None:
            return ()
        steps.append((factor, count))
    low = access.partition.base
    lanes = Interval(low, low + access.partitions - 1)
    key = (_slot(access), access.partition.terms, tuple(fixed))
    return tuple(Reached(key, lanes, interval) for interval in elements(steps, access.offset.base))


def _slot(access: Access) -> Affine:
    """The slot, for a tile with one the same whatever it is called."""
    return Affine() if access.buffer.slots == 1 else access.slot


def _hull(steps: list[_Step], base: int) -> list[Interval]:
    """From the first element to the last one."""
    ends = [stride * (size - 1) for stride, size in steps]
    return [Interval(base + sum(min(0, end) for end in ends),
                     base + sum(max(0, end) for end in ends))]  # fmt: skip


def _intervals(steps: list[_Step], base: int) -> list[Interval]:
    """All elements; nothing if they are in too many pieces."""
    low = high = base
    rest = sorted(
        ((stride, size) for stride, size in steps if size > 1), key=lambda step: abs(step[0])
    )
    while rest and abs(rest[0][0]) <= high - low + 1:
        stride, size = rest.pop(0)
        end = stride * (size - 1)
        low, high = low + min(0, end), high + max(0, end)
    if math.prod(size for _, size in rest) > _MOST_INTERVALS:
        return []
    starts = [0]
    for stride, size in rest:
        starts = [start + stride * step for start in starts for step in range(size)]
    return [Interval(low + start, high + start) for start in starts]


@dataclass(slots=True)
class Filled:
    """What has been written so far."""

    boxes: dict[Key, dict[tuple[Interval, Interval], None]] = field(default_factory=dict)

    def add(self, reached: Iterable[Reached]) -> None:
        """Takes note of what a write fills."""
        for access in reached:
            self.boxes.setdefault(access.key, {})[access.partitions, access.elements] = None

    def has(self, wanted: Reached | None) -> bool:
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
