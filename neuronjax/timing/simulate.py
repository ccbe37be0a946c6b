"""The simulation of a kernel in time: its instructions in program order, on a core's clocks.

Loops: when all clocks advance by the same per trip, or per few trips, the rest of the loop is added
at once. Where clocks advance at different rates (an engine runs ahead of another one), the jump is
tried, and taken back if the trips after it are different.

A kernel begins with what those before have left of their engines, queues and links: a `State`.
Times are integers in ps: equal kernels that begin alike take equal times, and steady states are
exact.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.program.instruction import After
from neuronjax.timing.core import NOTHING, Core, Event, Pending
from neuronjax.timing.encoding import Compiled, Nest, Streams
from neuronjax.timing.platform import Platform
from neuronjax.timing.semaphores import Semaphore
from neuronjax.timing.state import COUNT, REST, State

PERIODS = (1, 2, 3, 4)
"""Trips after which a loop may repeat itself; two slots give two."""

MOST_WATCHED = 1_024
MOST_RUNS = 50_000
"""Trips of a loop, and runs of instructions in it, in which a steady state is looked for. Then the
loop goes on as in the later half of them, which is no longer exact."""

FEWEST_RUNS = 64
"""Runs of instructions in a loop from which looking for a steady state pays."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A kernel's times in ps; busy times by index of `ENGINES`."""

    #: Its first start and its end, from where its `State` counts.
    start: int
    duration: int
    busy: tuple[int, ...]
    #: Work on the DMA engines, as if all took part; and time that any transfer was under way.
    dma_busy: int
    dma_active: int
    collective_busy: int
    #: Instructions that were simulated; loops jump over the others.
    simulated: int
    #: By part of the kernel: the end of its last instruction.
    ends: tuple[int, ...]
    #: What it leaves: the core; and for each of its `completing`, by number of its instructions,
    #: when so many are done.
    left: State
    completed: tuple[tuple[int, ...], ...]
    #: Trips of loops without a steady state that were taken to be like those before them.
    averaged: int = 0
    events: tuple[Event, ...] = ()


class _Snapshot(NamedTuple):
    """The state after a trip: times, counts, and what must be equal; `mark` tells most apart."""

    mark: int
    times: tuple[int, ...]
    counts: tuple[int, ...]
    same: tuple[object, ...]


class _Saved(NamedTuple):
    """The state that a jump changes."""

    times: list[int]
    gaps: list[tuple[int, int]]
    semaphores: list[Semaphore]
    pending: list[deque[Pending]]
    waiting: int
    tables: str | None
    heat: int


class Simulation(Core):
    """A kernel on the clocks of a core."""

    def run(self) -> Simulated:
        """The whole kernel. MalformedProgramError: engines wait for each other for ever."""
        t = self.t
        self.body(self.compiled.streams)
        self.finish()
        return Simulated(
            start=self.first or 0,
            duration=max(t[self.end], t[self.free]) if self.compiled.queues else t[self.end],
            busy=tuple(t[self.busy : self.busy + COUNT]),
            dma_busy=t[self.dma_busy],
            # A transfer in a gap before the last activity is only in the work.
            dma_active=max(t[self.dma_active], t[self.dma_busy]),
            collective_busy=t[self.collective_busy],
            simulated=self.simulated,
            ends=tuple(t[self.ends : self.busy]),
            left=self.left(),
            completed=tuple(
                tuple(itertools.accumulate((t[self.done + leaf] for leaf in order), max))
                for order in self.compiled.orders
            ),
            averaged=self.averaged,
            events=tuple(self.events),
        )

    def body(self, ops: Streams) -> None:
        for op in ops:
            if isinstance(op, Nest):
                self.loop(op)
            else:
                self.step(op)

    def loop(self, nest: Nest) -> None:
        """All trips of a loop; those of a steady state are jumped over."""
        trip = watched = 0
        began = self.simulated
        farthest = nest.trips
        history: list[_Snapshot] = []
        middle: tuple[int, _Snapshot] | None = None
        watches = nest.weight >= FEWEST_RUNS and nest.trips > 2
        watches = watches and len(self.events) >= self.most_events
        while trip < nest.trips:
            self.trips(nest, trip, 1)
            trip += 1
            watched += 1
            if not watches or trip == nest.trips:
                continue
            history.append(self.snapshot())
            del history[: -2 * PERIODS[-1] - 1]
            left = nest.trips - trip
            period = _period(history)
            if period is not None:
                periods = min(left, farthest) // period
                ran = self.ahead(nest, trip, period, periods, history)
                farthest = nest.trips if ran or farthest < 4 * period else farthest // 4
                trip += ran
                history.clear()
            share = max(watched / MOST_WATCHED, (self.simulated - began) / MOST_RUNS)
            if share >= 0.5 and middle is None:
                middle = (trip, self.snapshot())
            elif share >= 1.0 and middle is not None and trip < nest.trips:
                span = trip - middle[0]
                left = nest.trips - trip
                if self.average(middle[1], left // span):
                    self.averaged += left // span * span
                    trip += left // span * span
                    watches = False

    def average(self, middle: _Snapshot, periods: int) -> bool:
        """Goes on as since `middle`, without idle times of the DMA engines; False: it cannot."""
        size = len(self.t)
        now, before = _without_gaps(self.snapshot(), size), _without_gaps(middle, size)
        if len(now.times) != len(before.times):
            return False
        self.gaps = []
        self.jump(now, before, periods)
        # Clocks at different rates have overtaken each other: the last one decides.
        t = self.t
        computing = max(t[:COUNT])
        t[self.end] = max(t[self.end], computing, *t[self.queue_ends : self.link])
        return True

    def trips(self, nest: Nest, first: int, number: int) -> None:
        """Some trips of a loop, one by one."""
        for trip in range(first, first + number):
            self.counters[nest.counter] = trip
            self.body(nest.body)

    def ahead(
        self, nest: Nest, trip: int, period: int, periods: int, history: Sequence[_Snapshot]
    ) -> int:
        """Adds `periods` periods at once; returns the trips done, 0 if that would be wrong.

        Where not all clocks advance by the same, two more periods are run to see whether the state
        is still steady.
        """
        now, before = history[-1], history[-1 - period]
        if _is_uniform(now, before, self.busy):
            self.jump(now, before, periods)
            return periods * period
        periods -= 2
        if periods < 1:
            return 0
        saved = self.save()
        self.jump(now, before, periods)
        further = trip + periods * period
        landed = self.snapshot()
        self.trips(nest, further, period)
        once = self.snapshot()
        self.trips(nest, further + period, period)
        steps = [_step(now, before), _step(once, landed), _step(self.snapshot(), once)]
        if steps[0] is not None and steps[0] == steps[1] == steps[2]:
            return (periods + 2) * period
        self.restore(saved)
        return 0

    def snapshot(self) -> _Snapshot:
        gaps = [time for gap in self.open_gaps() for time in gap]
        recent = [time for known in self.semaphores for time in known.times[-4:]]
        shapes = tuple(len(known.times[-4:]) for known in self.semaphores)
        waits = tuple(
            (waiting.leaf.number, tuple(semaphore for semaphore, _ in waiting.waits))
            for queue in self.pending
            for waiting in queue
        )
        return _Snapshot(
            sum(self.t),
            (*self.t, *gaps, *recent),
            tuple(known.total for known in self.semaphores),
            (len(gaps), shapes, waits, self.tables, self.heat),
        )

    def jump(self, now: _Snapshot, before: _Snapshot, periods: int) -> None:
        """Adds what one period adds, `periods` times."""
        if periods < 1:
            return
        steps = [periods * (a - b) for a, b in zip(now.times, before.times, strict=True)]
        counts = [periods * (a - b) for a, b in zip(now.counts, before.counts, strict=True)]
        size, kept = len(self.t), self.open_gaps()
        for position in range(size):
            self.t[position] += steps[position]
        alive = 2 * len(kept)
        gap_steps = steps[size : size + alive]
        self.gaps = [
            (begin + gap_steps[2 * at], end + gap_steps[2 * at + 1])
            for at, (begin, end) in enumerate(kept)
        ]
        position = size + alive
        for known, count in zip(self.semaphores, counts, strict=True):
            width = len(known.times[-4:])
            position += width
            known.jump(steps[position - 1] if width else 0, count)
        for at, queue in enumerate(self.pending):
            self.pending[at] = deque(
                Pending(
                    waiting.leaf,
                    tuple(
                        (semaphore, count + counts[semaphore]) for semaphore, count in waiting.waits
                    ),
                )
                for waiting in queue
            )

    def save(self) -> _Saved:
        return _Saved(
            self.t[:],
            self.gaps[:],
            [known.copy() for known in self.semaphores],
            [deque(queue) for queue in self.pending],
            self.waiting,
            self.tables,
            self.heat,
        )

    def restore(self, saved: _Saved) -> None:
        self.t[:] = saved.times  # in place: callers hold the list
        self.gaps, self.semaphores, self.pending = saved.gaps, saved.semaphores, saved.pending
        self.waiting, self.tables, self.heat = saved.waiting, saved.tables, saved.heat


def _step(now: _Snapshot, before: _Snapshot) -> tuple[object, ...] | None:
    """What a period adds; None: the states have different shapes."""
    if now.same != before.same or len(now.times) != len(before.times):
        return None
    return (
        tuple([a - b for a, b in zip(now.times, before.times, strict=True)]),
        tuple([a - b for a, b in zip(now.counts, before.counts, strict=True)]),
    )


def _period(history: Sequence[_Snapshot]) -> int | None:
    """The trips after which all that is added repeats; None: it does not yet."""
    for period in PERIODS:
        if len(history) <= 2 * period:
            return None
        now, before, earlier = history[-1], history[-1 - period], history[-1 - 2 * period]
        if now.mark - before.mark != before.mark - earlier.mark:
            continue
        step = _step(now, before)
        if step is not None and step == _step(before, earlier):
            return period
    return None


def _without_gaps(state: _Snapshot, size: int) -> _Snapshot:
    """A state whose `size` clocks are followed by semaphores at once."""
    gaps = state.same[0]
    assert isinstance(gaps, int)
    times = (*state.times[:size], *state.times[size + gaps :])
    return state._replace(times=times, same=(0, *state.same[1:]))


def _is_uniform(now: _Snapshot, before: _Snapshot, clocks: int) -> bool:
    """Whether all clocks that advance do so by the same, and overtake none that stands still.

    Busy times, behind the clocks, are none themselves.
    """
    steps = [now.times[at] - before.times[at] for at in range(clocks)]
    advancing = [now.times[at] for at in range(clocks) if steps[at]]
    if len(set(steps) - {0}) > 1:
        return False
    slowest = min(advancing, default=0)
    return all(step or now.times[at] <= slowest for at, step in enumerate(steps))


def simulate(
    compiled: Compiled,
    platform: Platform,
    most_events: int = 0,
    state: State = REST,
    completed: Mapping[After, int] = NOTHING,
) -> Simulated:
    """A kernel in time; the first `most_events` instructions and transfers are recorded.

    `completed` says when streams have completed kernels before; others have long since.
    """
    return Simulation(compiled, platform, most_events, state, completed).run()
