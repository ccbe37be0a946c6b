"""Semaphores at run time: their counts, and the events that a wait on them has seen."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from neuronjax.emulate.clocks import Clock


@dataclass
class Counter:
    """A semaphore: its value after every signal, and the events seen by a wait for that value."""

    values: list[int] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)

    @property
    def value(self) -> int:
        return self.values[-1] if self.values else 0

    def add(self, by: int, clock: Clock) -> None:
        joined = clock.copy()
        if self.clocks:
            joined.join(self.clocks[-1])
        self.values.append(self.value + by)
        self.clocks.append(joined)

    def seen(self, count: int) -> Clock:
        """The events seen by a wait until the semaphore reaches `count`."""
        return self.clocks[bisect_left(self.values, count)] if count > 0 else Clock()
