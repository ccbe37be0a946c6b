"""The counts of semaphores over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_KEPT = 1_024
"""Increments of a semaphore that are remembered."""


class Semaphore:
    """The counts of a semaphore over time: increments sorted by time."""

    __slots__ = ("counts", "times", "total")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.counts: list[int] = []
        self.total = 0

    def add(self, time: int, by: int) -> None:
        self.total += by
        if not self.times or time >= self.times[-1]:
            self.times.append(time)
            self.counts.append(self.total)
            if len(self.times) > 4 * _KEPT:
                del self.times[:-_KEPT], self.counts[:-_KEPT]
            return
        position = bisect_right(self.times, time)
        before = self.counts[position - 1] if position else self.counts[0] - by
        self.times.insert(position, time)
        self.counts.insert(position, before)
        for later in range(position, len(self.counts)):
            self.counts[later] += by

    def reached(self, count: int) -> int:
        """The time at which the semaphore has a count that it gets to."""
        return self.times[bisect_left(self.counts, count)]

    def copy(self) -> Semaphore:
        other = Semaphore()
        other.times, other.counts, other.total = self.times[:], self.counts[:], self.total
        return other

    def jump(self, time: int, count: int) -> None:
        """Repeats the last increments, `time` later, until `count` more have come."""
        if not count:
            return
        self.total += count
        old = self.counts[-1]
        first = bisect_right(self.counts, old - count)
        self.times += [recent + time for recent in self.times[first:]]
        self.counts += [recent + count for recent in self.counts[first:]]
        del self.times[: -2 * _KEPT], self.counts[: -2 * _KEPT]
