"""The result of a schedule: what took how long, and what it was made of. Times are ns.

A kernel has two times. Its span reaches from its start to its end, as it is drawn; spans of kernels
overlap. What it adds is its end minus the end of all before it: this adds up to the whole, and may
be nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.program.instruction import After
from neuronjax.timing.encoding import Compiled
from neuronjax.timing.state import State

DMA = "dma"
COLLECTIVE = "collective"
"""Names of resources beside those of the engines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An instruction, transfer or collective. `lane` is an engine, `queue 3` or `stream 0`."""

    mnemonic: str
    lane: str
    start_ns: float
    end_ns: float


class Runs(NamedTuple):
    """Runs of a kernel that take equally long and follow each other in equal steps."""

    #: The first of them.
    start: float
    end: float
    #: Number and step of the rounds of each loop around them, innermost first.
    rounds: tuple[tuple[int, float], ...] = ()

    @property
    def number(self) -> int:
        """The number of the runs."""
        return math.prod(count for count, _ in self.rounds)

    def at(self, position: int) -> tuple[float, float]:
        """Start and end of one of them."""
        later = 0.0
        for count, step in self.rounds:
            position, turn = divmod(position, count)
            later += turn * step
        return self.start + later, self.end + later


def sampled(runs: Sequence[Runs], most: int) -> Iterator[tuple[float, float]]:
    """Start and end of at most `most` runs, the first and the last among them."""
    whole = sum(alike.number for alike in runs)
    kept = min(whole, most)
    wanted = [number * (whole - 1) // max(kept - 1, 1) for number in range(kept)]
    first = 0
    for alike in runs:
        inside = [number - first for number in wanted if first <= number < first + alike.number]
        yield from map(alike.at, inside)
        first += alike.number


@dataclass(frozen=True, slots=True, eq=False)
class FirstRun:
    """What the first run of a kernel begins with on its first physical core, to simulate it again
    with its instructions; times in ps."""

    compiled: Compiled
    state: State
    completed: Mapping[After, int]
    #: From where the state counts to where the kernel's span begins.
    lead: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """What a part of a kernel adds to one run: from the end of those before it to its own."""

    name: str
    operations: tuple[str, ...]
    sources: tuple[str, ...]
    added_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRuns:
    """All runs of a kernel at one place of the program."""

    path: str
    operations: tuple[str, ...]
    sources: tuple[str, ...]
    runs: int
    #: Start of its first, and end of its last run.
    start_ns: float
    end_ns: float
    #: Means over all runs: from start to end; and what a run adds to the time of the program.
    span_ns: float
    added_ns: float
    in_time: tuple[Runs, ...]
    #: One run: by engine, "dma" and "collective".
    busy_ns: Mapping[str, float] = field(hash=False)
    #: One run: time during which any transfer is under way.
    dma_active_ns: float
    #: The resource that is busy for longest.
    critical: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime(KernelRuns):
    """All runs of a kernel, as a schedule has them."""

    #: One run: multiplications and additions of the Tensor engine, and bytes of HBM.
    flops: int
    hbm_bytes: int
    #: At least one; what they add is what the kernel adds.
    parts: tuple[PartTime, ...]
    first_run: FirstRun = field(repr=False, hash=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A program in time. Work counts both physical cores of a logical one."""

    program: str
    total_ns: float
    #: Part of the total before the first and after the last kernel.
    launch_ns: float
    kernels: tuple[KernelTime, ...]
    #: Over all runs, on the busier physical core: by engine, "dma" and "collective".
    busy_ns: Mapping[str, float] = field(hash=False)
    #: Runs of instructions by mnemonic, and hardware instructions by engine.
    instructions: Mapping[str, int] = field(hash=False)
    hardware_instructions: Mapping[str, int] = field(hash=False)
    flops: int
    dma_bytes: int
    hbm_bytes: int
    network_bytes: int
    #: Of these, by the ranks of a group, or by sender and receiver.
    traffic: Mapping[tuple[int, ...], int] = field(hash=False)
    #: Instructions that the simulation went through; the others follow from steady states.
    simulated_instructions: int
    #: What had to be assumed, such as trips of a while.
    assumed: tuple[str, ...] = ()

    @property
    def instruction_count(self) -> int:
        """The number of runs of instructions."""
        return sum(self.instructions.values())

    def share(self, resource: str) -> float:
        """Busy time over the total."""
        return self.busy_ns[resource] / self.total_ns
