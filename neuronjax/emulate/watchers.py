"""Combines several watchers of memory accesses into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.emulate.frame import Values
from neuronjax.emulate.window import Array, Watcher, Window


@dataclass(frozen=True, slots=True)
class Watchers:
    """Passes every access on to all watchers."""

    watchers: Sequence[Watcher]

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        for watcher in self.watchers:
            watcher.reads(window, values, where)

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        for watcher in self.watchers:
            watcher.writes(window, values, where)


def watcher_of(watchers: Sequence[Watcher]) -> Watcher | None:
    """A watcher that combines the given ones; None if there are none."""
    return Watchers(watchers) if len(watchers) > 1 else next(iter(watchers), None)
