"""Collects the values of a comparison's watched ops, from many threads at once."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field

import numpy as np

from neuronjax.accuracy.comparison import Comparison, Decision, Output, Row
from neuronjax.accuracy.measure import NONE, Error, error
from neuronjax.accuracy.sites import Site, Visit
from neuronjax.errors import NonDeterministicError

_Key = tuple[int, int]
"""Position of an op, number of its result."""


@dataclass
class _Tally:
    """The errors of a float result so far."""

    site: Site
    type: str
    visits: int = 0
    local: Error = NONE
    accumulated: Error = NONE
    worst: Visit | None = None
    """Where the local error was greatest."""
    beyond: Visit | None = None
    """The first visit at which the runs had diverged."""
    beyond_error: Error = NONE


@dataclass
class Records:
    """Everything that the callbacks of a comparison have reported."""

    divergence_ulps: float
    _tallies: dict[_Key, _Tally] = field(default_factory=dict)
    _outputs: dict[int, Output] = field(default_factory=dict)
    _decisions: dict[Site, int] = field(default_factory=dict)
    _digests: dict[tuple[_Key, int], int] = field(default_factory=dict)
    """Result and core -> checksum of all its values, in order of arrival."""
    _first_digests: dict[tuple[_Key, int], int] | None = None
    """The checksums of the first run, once it has ended."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def result(self, visit: Visit, index: int, type_: str, values: list[np.ndarray]) -> None:
        """Records an op's result: the chip's, the wider op's on its operands, the wide run's."""
        chip, local, shadow = values
        key = (visit.site.order, index)
        with self._lock:
            of_core = (key, visit.core)
            self._digests[of_core] = zlib.crc32(chip.tobytes(), self._digests.get(of_core, 0))
        if self._first_digests is not None:
            return
        own, total = error(chip, local), error(chip, shadow)
        with self._lock:
            tally = self._tallies.setdefault(key, _Tally(visit.site, type_))
            tally.visits += 1
            if tally.worst is None or (own.relative, own.ulps) > (
                tally.local.relative,
                tally.local.ulps,
            ):
                tally.worst = visit
            tally.local = tally.local.worse(own)
            tally.accumulated = tally.accumulated.worse(total)
            if total.ulps > self.divergence_ulps and _earlier(visit, tally.beyond):
                tally.beyond, tally.beyond_error = visit, total

    def decision(self, visit: Visit, values: list[np.ndarray]) -> None:
        """Records a value that decides control flow: the chip's and the wide run's."""
        if self._first_digests is None and values[0] != values[1]:
            with self._lock:
                self._decisions[visit.site] = self._decisions.get(visit.site, 0) + 1

    def output(self, index: int, type_: str, values: list[np.ndarray]) -> None:
        """Records a float result of the program: the chip's and the wide run's."""
        if self._first_digests is None:
            total = error(*values)
            with self._lock:
                known = self._outputs.get(index)
                total = total if known is None else total.worse(known.accumulated)
                self._outputs[index] = Output(index, type_, total)

    def repeat(self) -> None:
        """Ends the first run; from now on, values are only compared with those of that run."""
        self._first_digests, self._digests = self._digests, {}

    def require_same(self) -> None:
        """Raises ``NonDeterministicError`` if the second run had other values."""
        first, second = self._first_digests or {}, self._digests
        differing = [key for key in first if second.get(key) != first[key]]
        if differing:
            (order, index), _ = min(differing)
            site = self._tallies[order, index].site
            raise NonDeterministicError(
                f"two runs of the function differ, first at {site.op} ({site.source}), so errors "
                "cannot be told from noise. Pass random keys as arguments, return fixed values "
                "from host callbacks, and switch stochastic rounding off."
            )

    def summary(self, chip: str, reference: str, cores: int) -> Comparison:
        """The result of the comparison."""
        tallies = [self._tallies[key] for key in sorted(self._tallies)]
        rows = [_row(tally, tally.local, tally.accumulated, tally.worst) for tally in tallies]
        return Comparison(
            chip=chip,
            reference=reference,
            cores=cores,
            rows=tuple(rows),
            outputs=tuple(self._outputs[index] for index in sorted(self._outputs)),
            first_divergence=_first_divergence(tallies),
            decisions=tuple(
                Decision(site.op, site.source, count)
                for site, count in sorted(self._decisions.items(), key=lambda item: item[0].order)
            ),
        )


def _earlier(visit: Visit, known: Visit | None) -> bool:
    return known is None or (visit.when, visit.core) < (known.when, known.core)


def _first_divergence(tallies: list[_Tally]) -> Row | None:
    first: _Tally | None = None
    for tally in tallies:
        if tally.beyond and _earlier(tally.beyond, first.beyond if first else None):
            first = tally
    return _row(first, first.local, first.beyond_error, first.beyond) if first else None


def _row(tally: _Tally, local: Error, accumulated: Error, visit: Visit | None) -> Row:
    assert visit is not None  # a tally begins with a visit
    return Row(
        op=tally.site.op,
        source=tally.site.source,
        type=tally.type,
        visits=tally.visits,
        local=local,
        accumulated=accumulated,
        core=visit.core,
        iterations=visit.iterations,
    )
