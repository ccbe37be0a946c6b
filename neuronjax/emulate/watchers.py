"""Several watchers as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.emulate.frame import Values
from neuronjax.emulate.window import Array, Watcher, Window


@dataclass(frozen=True, slots=True)
class Watchers:
    """Tells all of them."""

    watchers: Sequence[Watcher]

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        for each in self.watchers:
            each.reads(window, values, where)

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        for each in self.watchers:
            each.writes(window, values, where)


def watcher_of(watchers: Sequence[Watcher]) -> Watcher | None:
    """One for all; None: there are none."""
    return Watchers(watchers) if len(watchers) > 1 else next(iter(watchers), None)
