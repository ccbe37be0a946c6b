"""Passes findings on, once per pair of instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from neuronjax.emulate.checks import Finding


@dataclass
class Reporter:
    """Findings of one rank."""

    rank: int
    to: Callable[[Finding], None]
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def restart(self) -> None:
        """Forgets what has been reported."""
        self._seen.clear()

    def report(self, finding: Finding) -> None:
        """Passes a finding on unless an equivalent one has been reported."""
        key = (finding.kind, *finding.paths)
        if key not in self._seen:
            self._seen.add(key)
            self.to(finding)
