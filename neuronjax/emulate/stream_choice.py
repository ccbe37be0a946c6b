"""Which stream advances next in dataflow order, drawn by a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_ANY = 1 / 8
"""Probability of drawing a stream regardless of priorities."""
_CHANGE = 1 / 32
"""Probability that the chosen stream gets a new priority."""


@dataclass
class Favourites:
    """Gives streams priorities that change now and then: some run far ahead while others starve.

    This exposes more bugs than uniform draws, which keep all streams about level (Burckhardt et
    al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).
    """

    chance: random.Random
    _priorities: dict[str, float] = field(default_factory=dict)

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """The stream of highest priority, or now and then any stream."""
        streams = [*engines, *queues]
        for name in streams:
            if name not in self._priorities:
                self._priorities[name] = self.chance.random()
        if self.chance.random() < _ANY:
            return self.chance.choice(streams)
        chosen = max(streams, key=self._priorities.__getitem__)
        if self.chance.random() < _CHANGE:
            self._priorities[chosen] = self.chance.random()
        return chosen


@dataclass(frozen=True, slots=True)
class Late:
    """Transfers end as late as possible: queues advance only when no engine can."""

    chance: random.Random

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """Any engine; if there is none, any queue."""
        return self.chance.choice(engines or queues)
