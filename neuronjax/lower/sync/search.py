"""The cheapest distances for which two patterns of addresses meet: a small integer program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_STEPS = 400
"""Steps of a search; what takes longer is not known."""
_MOST_CHOICES = 8
"""Values of one free term that are tried, before only the greatest common divisor is asked."""


@dataclass(slots=True)
class Unknown:
    """A distance: its cost, its range, and what one more adds to address, partition and slot."""

    cost: int
    low: int
    high: int
    start: int
    partition: int
    slot: int


Term = tuple[int, int, int]
"""A factor above 0, and the range of what it is multiplied with."""


@dataclass(slots=True)
class Window:
    """A condition: Σ factor · distance plus the free terms lies between `low` and `high`."""

    low: int
    high: int
    free: list[Term]


def merged(terms: Iterable[tuple[int, int]]) -> list[Term]:
    """Terms of (factor, count) with multipliers 0 … count - 1; the greatest factor first."""
    ranges: dict[int, tuple[int, int]] = {}
    for factor, count in terms:
        low, high = ranges.get(abs(factor), (0, 0))
        if factor > 0:
            ranges[factor] = low, high + count - 1
        elif factor < 0:
            ranges[-factor] = low - count + 1, high
    return sorted(((factor, *ends) for factor, ends in ranges.items()), reverse=True)


def cheapest(
    unknowns: Sequence[Unknown],
    addresses: Window | None,
    partitions: Window,
    slots: tuple[int, int],
) -> list[int] | None:
    """The distances of least cost that meet all conditions; None: there are none.

    `slots` are modulus and remainder. An empty list if there are unknowns: nobody knows.
    """
    modulus, remainder = slots
    if modulus > 1 and remainder % math.gcd(modulus, *(unknown.slot for unknown in unknowns)):
        return None
    search = _Search(unknowns, addresses, partitions, modulus, remainder)
    search.go(0, 0, 0, 0, 0)
    if search.steps > MOST_STEPS:
        return []
    return None if search.best is None else search.best[1]


class _Search:
    """Depth first, for each distance the cheapest first."""

    def __init__(
        self,
        unknowns: Sequence[Unknown],
        addresses: Window | None,
        partitions: Window,
        modulus: int,
        remainder: int,
    ) -> None:
        self.unknowns = unknowns
        self.addresses = addresses
        self.partitions = partitions
        self.modulus, self.remainder = modulus, remainder
        self.steps = 0
        self.best: tuple[int, list[int]] | None = None
        self.chosen = [0] * len(unknowns)
        self.rest = _sums([unknown.cost * unknown.low for unknown in unknowns])
        self.reach = _reach([(u.start, u.low, u.high) for u in unknowns], addresses)
        self.lanes = _reach([(u.partition, u.low, u.high) for u in unknowns], partitions)

    def go(self, index: int, cost: int, start: int, partition: int, slot: int) -> None:
        """Tries all distances from `index` on."""
        self.steps += 1
        if index == len(self.unknowns):
            if self._meets(start, partition, slot):
                self.best = cost, list(self.chosen)
            return
        unknown = self.unknowns[index]
        low, high = self._range(unknown, index, start, partition)
        for distance in range(low, high + 1):
            spent = cost + unknown.cost * distance
            if self.best is not None and spent + self.rest[index + 1] >= self.best[0]:
                return
            if self.steps > MOST_STEPS:
                return
            self.chosen[index] = distance
            self.go(
                index + 1,
                spent,
                start + unknown.start * distance,
                partition + unknown.partition * distance,
                slot + unknown.slot * distance,
            )

    def _range(self, unknown: Unknown, index: int, start: int, partition: int) -> tuple[int, int]:
        low, high = unknown.low, unknown.high
        if self.addresses is not None:
            low, high = _narrowed(
                low, high, unknown.start, start, self.addresses, self.reach[index]
            )
        low, high = _narrowed(
            low, high, unknown.partition, partition, self.partitions, self.lanes[index]
        )
        if not unknown.start and not unknown.partition and not unknown.slot % self.modulus:
            high = min(high, low)
        return low, high

    def _meets(self, start: int, partition: int, slot: int) -> bool:
        if (slot - self.remainder) % self.modulus:
            return False
        lanes, window = self.partitions, self.addresses
        if not _hits(lanes.free, 0, lanes.low - partition, lanes.high - partition):
            return False
        return window is None or _hits(window.free, 0, window.low - start, window.high - start)


def _sums(values: Sequence[int]) -> list[int]:
    """Sums of the values from each place on."""
    sums = [0]
    for value in reversed(values):
        sums.append(sums[-1] + value)
    return sums[::-1]


def _reach(terms: Sequence[tuple[int, int, int]], window: Window | None) -> list[tuple[int, int]]:
    """What the terms behind each place and the free ones add at least and at most."""
    low = high = 0
    for factor, first, last in window.free if window is not None else ():
        low, high = low + factor * first, high + factor * last
    reached = []
    for factor, first, last in reversed(terms):
        reached.append((low, high))
        ends = factor * first, factor * last
        low, high = low + min(ends), high + max(ends)
    return reached[::-1]


def _narrowed(
    low: int, high: int, factor: int, known: int, window: Window, rest: tuple[int, int]
) -> tuple[int, int]:
    """The part of a range that leaves the condition possible."""
    first, last = window.low - known - rest[1], window.high - known - rest[0]
    if not factor:
        return (low, high) if first <= 0 <= last else (1, 0)
    if factor < 0:
        first, last, factor = -last, -first, -factor
    return max(low, -(-first // factor)), min(high, last // factor)


def _hits(free: list[Term], index: int, low: int, high: int) -> bool:
    """Whether the terms from `index` on can add up to `low` … `high`."""
    if low > high:
        return False
    if index == len(free):
        return low <= 0 <= high
    least = sum(factor * first for factor, first, _ in free[index + 1 :])
    most = sum(factor * last for factor, _, last in free[index + 1 :])
    factor, first, last = free[index]
    begin = max(first, -(-(low - most) // factor))
    end = min(last, (high - least) // factor)
    if end - begin < _MOST_CHOICES:
        return any(
            _hits(free, index + 1, low - factor * step, high - factor * step)
            for step in range(begin, end + 1)
        )
    step = math.gcd(*(factor for factor, _, _ in free[index:]))
    low, high = max(low, factor * first + least), min(high, factor * last + most)
    return -(-low // step) * step <= high
