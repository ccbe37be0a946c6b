"""The runs of a kernel while a program is scheduled, and what they become in its timeline."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.program.program import Kernel, Part
from neuronjax.timing.encoding import ENGINES, PS, Compiled
from neuronjax.timing.simulate import Simulated
from neuronjax.timing.timeline import COLLECTIVE, DMA, FirstRun, KernelTime, PartTime, Runs

HOST = "host"
NAMES: tuple[str, ...] = tuple(HOST if engine is None else engine.value for engine in ENGINES)
"""Names of `ENGINES`."""

LANES: Mapping[str, Callable[[int], str]] = {
    "engine": NAMES.__getitem__,
    "dma": "queue {}".format,
    "collective": "stream {}".format,
}
"""Kind of an event -> the name of its lane, by number."""


@dataclass(slots=True)
class KernelRuns:
    """The runs of a kernel at one place, or of those beside it on other cores as well."""

    kernel: Kernel
    compiled: tuple[Compiled, ...]
    first: FirstRun
    #: Results, and what was over before, of the last run.
    results: tuple[Simulated, ...] = ()
    before: int = 0
    count: int = 0
    #: What all runs add to the time of the program.
    added: int = 0
    #: In ps from the start of the first kernel.
    in_time: list[Runs] = field(default_factory=list)

    @property
    def known(self) -> Known:
        """The sums over runs until now."""
        return Known(self.count, self.added, len(self.in_time))


class Known(NamedTuple):
    """Sums of a kernel's runs: how many, what they add, and number of entries `in_time`."""

    runs: int = 0
    added: int = 0
    entries: int = 0


def kernel_time_of(path: str, runs: KernelRuns, prologue: float, work: Work) -> KernelTime:
    """All runs of a kernel; `work` is that of one, `prologue` ns precede the first kernel."""
    in_time = tuple(_in_ns(alike, prologue) for alike in runs.in_time)
    whole = sum((alike.end - alike.start) * alike.number for alike in runs.in_time)
    busy = _busy(runs.results)
    return KernelTime(
        path=path,
        operations=runs.kernel.operations,
        sources=runs.kernel.sources,
        runs=runs.count,
        start_ns=in_time[0].start,
        end_ns=max(alike.at(alike.number - 1)[1] for alike in in_time),
        span_ns=whole / runs.count / PS,
        added_ns=runs.added / runs.count / PS,
        in_time=in_time,
        busy_ns=busy,
        dma_active_ns=max(result.dma_active for result in runs.results) / PS,
        critical=max(busy, key=lambda name: busy[name]),
        flops=work.flops,
        hbm_bytes=work.hbm_bytes,
        parts=_parts(runs),
        first_run=runs.first,
    )


def _in_ns(runs: Runs, prologue: float) -> Runs:
    return Runs(
        prologue + runs.start / PS,
        prologue + runs.end / PS,
        tuple((count, step / PS) for count, step in runs.rounds),
    )


def _parts(runs: KernelRuns) -> tuple[PartTime, ...]:
    """What a run adds, shared out over the parts of a kernel."""
    kernel, duration = runs.kernel, runs.added / runs.count / PS
    parts = kernel.parts or (Part(kernel.name, kernel.operations, kernel.sources),)
    ends = [
        max(ends_of_part)
        for ends_of_part in zip(*(result.ends for result in runs.results), strict=True)
    ]
    reached = list(itertools.accumulate([runs.before, *ends], max))
    whole = reached[-1] - runs.before
    shares = [(end - begin) / whole if whole else 1 / len(parts) for begin, end in
              itertools.pairwise(reached)]  # fmt: skip
    return tuple(
        PartTime(
            name=part.name,
            operations=part.operations,
            sources=part.sources,
            added_ns=duration * share,
        )
        for part, share in zip(parts, shares, strict=True)
    )


def _busy(results: Sequence[Simulated]) -> dict[str, float]:
    """Busy times of the core that is busiest, resource by resource."""
    times = [(*result.busy, result.dma_busy, result.collective_busy) for result in results]
    longest = map(max, zip(*times, strict=True))
    return {name: time / PS for name, time in zip((*NAMES, DMA, COLLECTIVE), longest, strict=True)}


class Work:
    """Sums over instructions."""

    def __init__(self) -> None:
        self.instructions: Counter[str] = Counter()
        self.hardware: Counter[str] = Counter()
        self.traffic: Counter[tuple[int, ...]] = Counter()
        self.flops = self.dma_bytes = self.hbm_bytes = self.network_bytes = 0

    def add(self, compiled: Compiled, runs: int) -> None:
        rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
        for instruction, cost, times in rows:
            number = times * runs
            self.instructions[instruction.mnemonic] += number
            engine = HOST if instruction.engine is None else instruction.engine.value
            self.hardware[engine] += cost.instructions * number
            self.flops += cost.flops * number
            if cost.transfer is not None:
                self.dma_bytes += cost.transfer.nbytes * number
                self.hbm_bytes += cost.transfer.hbm_bytes * number
            if cost.message is not None:
                self.network_bytes += cost.message.nbytes * number
                self.traffic[cost.message.ranks] += cost.message.nbytes * number
