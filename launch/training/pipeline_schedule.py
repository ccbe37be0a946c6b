"""What every stage of a pipeline does when.

A tick is a forward pass of one micro-batch through one chunk of a stage, then a backward pass; a
stage may have one of them, both or neither. What a stage has made in a tick its neighbour works on
in the next one, so all stages go in step, and a tick in which some stages pass forwards and others
backwards takes no longer than both need.

Axis names: p stages, m micro-batches, v chunks of each stage ("rounds"). Chunk c of stage s is the
virtual stage c·p + s, so a micro-batch goes around the ring of stages v times.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launch.errors import MeshError

IDLE = -1


@dataclass(frozen=True, eq=False)
class Passes:
    """The forward or the backward passes of a schedule; IDLE where a stage has none."""

    micro_batch: np.ndarray  # int32 [ticks, p]
    chunk: np.ndarray  # int32 [ticks, p]
    slot: np.ndarray  # int32 [ticks, p], where the pass finds the input of its chunk


class Phase(NamedTuple):
    """Ticks in which stages have passes of the same kinds."""

    ticks: range
    forward: bool
    backward: bool
    head: bool  # whether micro-batches leave the last virtual stage


class Cycle(NamedTuple):
    """Phases that follow each other, several times over."""

    phases: tuple[Phase, ...]  # the first time
    times: int

    def rows(self, phase: Phase) -> np.ndarray:
        """The ticks of one of the phases, int [times, ticks]."""
        length = sum(len(phase.ticks) for phase in self.phases)
        return np.arange(self.times)[:, None] * length + np.array(phase.ticks)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Everything that is known of a pipeline before it runs."""

    stages: int
    micro_batches: int
    rounds: int
    forward: Passes
    backward: Passes
    #: How many inputs of chunks a stage keeps at most, for its backward passes.
    slots: int

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Warm-up, steady state and drain, as far as there are such ticks."""
        leaves = self.backward.chunk[:, -1] == self.rounds - 1
        tables = (self.forward.micro_batch, self.backward.micro_batch, leaves)
        kinds = [
            (bool((f >= 0).any()), bool((b >= 0).any()), bool(head))
            for f, b, head in zip(*tables, strict=True)
        ]
        changes = [t for t in range(1, len(kinds)) if kinds[t] != kinds[t - 1]]
        edges = sorted({0, *changes, len(kinds)})
        return tuple(
            Phase(range(start, end), *kinds[start]) for start, end in itertools.pairwise(edges)
        )

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """The phases, those that alternate taken together: with several chunks micro-batches leave
        in some ticks of the steady state, and in others not."""
        phases, cycles = self.phases, []
        while phases:
            times = _times(phases)
            length = 2 if times > 1 else 1
            cycles.append(Cycle(phases[:length], times))
            phases = phases[length * times :]
        return tuple(cycles)

    @property
    def bubble(self) -> float:
        """The share of the time that a stage waits, where all passes of a kind take as long:
        (p - 1) / (m·v + p - 1) (Narayanan et al., "Efficient Large-Scale Language Model Training on
        GPU Clusters", 2021, §2.2)."""
        return (self.stages - 1) / (self.micro_batches * self.rounds + self.stages - 1)


def make_schedule(name: str, stages: int, micro_batches: int, rounds: int = 1) -> Schedule:
    """The schedule of that name. Raises MeshError if there is none, or if numbers do not fit."""
    if name not in SCHEDULES:
        raise MeshError(f"there is no pipeline schedule {name!r}; there is {', '.join(SCHEDULES)}.")
    if rounds > 1 and micro_batches % stages:
        raise MeshError(
            f"a pipeline of {stages} stages with {rounds} chunks each takes micro-batches in "
            f"groups of {stages}, and {micro_batches} is not a multiple of {stages}. Change "
            "--pipeline_parallel_num_microbatches, or give each stage one chunk."
        )
    passes = micro_batches * rounds
    delay = SCHEDULES[name](stages, passes, rounds)
    ticks = delay + passes + stages - 1
    order = [_pass(number, stages, rounds) for number in range(passes)]
    forward, backward = (np.full((3, ticks, stages), IDLE, np.int32) for _ in range(2))
    for stage in range(stages):
        for number, (micro_batch, chunk) in enumerate(order):
            forward[:2, number + stage, stage] = micro_batch, chunk
            tick = delay + number + stages - 1 - stage
            backward[:2, tick, stage] = micro_batch, rounds - 1 - chunk
        _fill_slots(forward[:, :, stage], backward[:, :, stage])
    slots = int(forward[2].max()) + 1
    return Schedule(stages, micro_batches, rounds, Passes(*forward), Passes(*backward), slots)


def _pass(number: int, stages: int, rounds: int) -> tuple[int, int]:
    """Micro-batch and chunk of a stage's pass: as many micro-batches as there are stages go
    through a chunk, then through the next one."""
    group, place = divmod(number, stages * rounds)
    chunk, micro_batch = divmod(place, stages) if rounds > 1 else (0, place)
    return group * stages + micro_batch, chunk


def _fill_slots(forward: np.ndarray, backward: np.ndarray) -> None:
    """Gives inputs of chunks slots from their forward passes to their backward passes, for one
    stage: arrays [3, ticks]."""
    taken: dict[tuple[int, int], int] = {}
    for tick in range(forward.shape[1]):
        for passes, is_forward in ((forward, True), (backward, False)):
            micro_batch, chunk = int(passes[0, tick]), int(passes[1, tick])
            if micro_batch == IDLE:
                continue
            if is_forward:
                used = set(taken.values())
                free = next(slot for slot in range(len(used) + 1) if slot not in used)
                taken[micro_batch, chunk] = free
            passes[2, tick] = taken[micro_batch, chunk]
            if not is_forward:
                del taken[micro_batch, chunk]


def _times(phases: Sequence[Phase]) -> int:
    """How often the first two phases follow each other."""
    kinds = [(len(phase.ticks), *phase[1:]) for phase in phases]
    times = 1
    while kinds[2 * times : 2 * times + 2] == kinds[:2]:
        times += 1
    return times


def _gpipe(stages: int, passes: int, rounds: int) -> int:
    """The tick after all forward passes (Huang et al., "GPipe", 2019)."""
    return passes + stages - 1


def _one_forward_one_backward(stages: int, passes: int, rounds: int) -> int:
    """The tick in which the first micro-batch reaches the last virtual stage: from then on a
    stage has a pass of each kind per tick (Narayanan et al., 2021, with chunks "interleaved").

    A micro-batch comes back to stage s 2·(p - 1 - s) ticks later, so a stage keeps up to 2·p - 1
    inputs instead of m. To keep p, stages would have to be out of step by half a tick, and as a
    backward pass takes longer than a forward pass, one would wait for the other.
    """
    return stages * rounds - 1


SCHEDULES: Mapping[str, Callable[[int, int, int], int]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
}
"""Name -> tick of the first backward pass, of p, m·v and v."""
