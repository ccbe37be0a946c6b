"""Who is next in dataflow order, drawn by a generator that a seed has set up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_ANY = 1 / 8
"""How often a stream is drawn whatever its priority."""
_CHANGE = 1 / 32
"""How often a stream that was chosen gets another priority."""


@dataclass
class Favourites:
    """Streams have priorities, which change now and then: one runs far ahead, another starves.

    This finds more than drawing anew each time, where all streams keep about level (Burckhardt et
    al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).
    """

    chance: random.Random
    _priorities: dict[str, float] = field(default_factory=dict)

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """The stream of the highest priority, or any."""
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
    """Transfers end as late as they may: queues work only when no engine can."""

    chance: random.Random

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """Any engine, else any queue."""
        return self.chance.choice(engines or queues)
