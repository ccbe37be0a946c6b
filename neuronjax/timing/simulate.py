"""One kernel in time.

Instructions are taken in program order, each engine at its own clock: an instruction starts when
its engine is free, its semaphores have their counts, and what it reads from its own engine is
there. One whose semaphores are not reached by then waits with all later ones of its engine. DMA
transfers keep the order of their queue, and share the DMA engines as one resource: a transfer fills
what earlier ones, in program order, have left free, and takes turns with other queues. Collectives
keep the order of their stream, and take turns on the links.

Loops: when all clocks advance by the same per trip, or per few trips, the rest of the loop is added
at once. Where clocks advance at different rates (an engine runs ahead of another one), the jump is
tried, and taken back if the trips after it are different.

A kernel begins with what those before have left of their engines, queues and links: a `State`.
Times are integers in ps: equal kernels that begin alike take equal times, and steady states are
exact.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.errors import MalformedProgramError
from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import After
from neuronjax.timing.encoding import ENGINES, PS, Compiled, Leaf, Nest, Streams
from neuronjax.timing.platform import Platform
from neuronjax.timing.state import COUNT, LONG_AGO, REST, State

_TENSOR = ENGINES.index(Engine.TENSOR)

PERIODS = (1, 2, 3, 4)
"""Trips after which a loop may repeat itself; two slots give two."""

MOST_WATCHED = 1_024
MOST_RUNS = 50_000
"""Trips of a loop, and runs of instructions in it, in which a steady state is looked for. Then the
loop goes on as in the later half of them, which is no longer exact."""

FEWEST_RUNS = 64
"""Runs of instructions in a loop from which looking for a steady state pays."""

_GAPS = 16
"""Idle times of the DMA engines that later transfers may fill."""

_KEPT = 1_024
"""Increments of a semaphore that are remembered."""

NOTHING: Mapping[After, int] = {}
"""No stream of a kernel before has anything left."""

_HEAT_ONE = 4_096
_HEAT_MOST = round(_HEAT_ONE / math.sqrt(2))
"""Use of the Tensor engine in 1/4096. At most 0.71: idle for half a window, it falls below half."""


class Event(NamedTuple):
    """An instruction, transfer or collective of a detailed simulation; times in ps."""

    leaf: int
    kind: str
    start: int
    end: int
    lane: int


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


class _Semaphore:
    """When a semaphore had which count: increments sorted by time."""

    __slots__ = ("counts", "times", "total")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.counts: list[int] = []
        self.total = 0

    def add(self, time: int, by: int) -> None:
        self.total += by
        if not self.times or time >= self.times[-1]:
            self.times.append(time)
            self.counts.append(self.total)
            if len(self.times) > 4 * _KEPT:
                del self.times[:-_KEPT], self.counts[:-_KEPT]
            return
        position = bisect_right(self.times, time)
        before = self.counts[position - 1] if position else self.counts[0] - by
        self.times.insert(position, time)
        self.counts.insert(position, before)
        for later in range(position, len(self.counts)):
            self.counts[later] += by

    def copy(self) -> _Semaphore:
        other = _Semaphore()
        other.times, other.counts, other.total = self.times[:], self.counts[:], self.total
        return other

    def jump(self, time: int, count: int) -> None:
        """As if increments repeated until `count` more have come, `time` later than the last."""
        if not count:
            return
        self.total += count
        old = self.counts[-1]
        first = bisect_right(self.counts, old - count)
        self.times += [recent + time for recent in self.times[first:]]
        self.counts += [recent + count for recent in self.counts[first:]]
        del self.times[: -2 * _KEPT], self.counts[: -2 * _KEPT]


class _Snapshot(NamedTuple):
    """The state after a trip: times, counts, and what must be equal; `mark` tells most apart."""

    mark: int
    times: tuple[int, ...]
    counts: tuple[int, ...]
    same: tuple[object, ...]


class _Pending(NamedTuple):
    """An instruction that waits, with the counts that it waits for."""

    leaf: Leaf
    waits: tuple[tuple[int, int], ...]


class _Saved(NamedTuple):
    """What a jump changes."""

    times: list[int]
    gaps: list[tuple[int, int]]
    semaphores: list[_Semaphore]
    pending: list[deque[_Pending]]
    waiting: int
    tables: str | None
    heat: int


class Simulation:
    """The state of one kernel's simulation."""

    def __init__(
        self,
        compiled: Compiled,
        platform: Platform,
        most_events: int = 0,
        state: State = REST,
        completed: Mapping[After, int] = NOTHING,
    ) -> None:
        calibration, timings = platform.calibration, platform.timings.engines
        self.compiled = compiled
        self.wake = round(calibration.wake_ns * PS)
        self.table_load = round(calibration.activation_table_ns * PS)
        self.slow_share = timings.throttle_share
        #: Use as a moving average falls and rises with this constant: full use for one window
        #: reaches half.
        self.constant = timings.throttle_window_ns * PS / math.log(2)
        leaves = len(compiled.instructions)
        queues, streams = len(compiled.queues), len(compiled.collective_streams)
        #: When streams have completed kernels before.
        self.completed = completed
        self.state = state
        # One flat list of times, so that a state can be compared and moved as one.
        self.generators = COUNT
        self.queue_starts = self.generators + COUNT
        self.queue_ends = self.queue_starts + queues
        self.streams = self.queue_ends + queues
        self.link = self.streams + streams
        self.free = self.link + 1
        self.end = self.free + 1
        self.active_end = self.end + 1
        self.done = self.active_end + 1
        self.ends = self.done + leaves
        self.busy = self.ends + compiled.parts
        self.dma_busy = self.busy + COUNT
        self.dma_active = self.dma_busy + 1
        self.collective_busy = self.dma_active + 1
        self.t = [0] * (self.collective_busy + 1)
        self.t[self.done : self.ends] = [LONG_AGO] * leaves
        self.begin(state)
        self.gaps: list[tuple[int, int]] = list(state.gaps)
        self.semaphores = [_Semaphore() for _ in range(compiled.semaphores)]
        self.pending: list[deque[_Pending]] = [deque() for _ in range(COUNT)]
        self.waiting = 0
        self.signalled = False
        self.tables = state.tables
        self.heat = state.heat
        self.counters = [0] * compiled.counters
        self.first: int | None = None
        self.simulated = self.averaged = 0
        self.events: list[Event] = []
        self.most_events = most_events

    def begin(self, state: State) -> None:
        """The clocks that kernels before have left."""
        t = self.t
        t[:COUNT] = state.engines
        t[self.generators : self.queue_starts] = state.generators
        known = {queue: (start, end) for queue, start, end in state.queues}
        for at, queue in enumerate(self.compiled.queues):
            start, end = known.get(queue, (LONG_AGO, 0))
            t[self.queue_starts + at], t[self.queue_ends + at] = start, end
        ends = dict(state.streams)
        for at, stream in enumerate(self.compiled.collective_streams):
            t[self.streams + at] = ends.get(stream, 0)
        t[self.link], t[self.free], t[self.active_end] = state.link, state.dma, state.dma_end

    def left(self) -> State:
        """The state after the kernel, from where its own counts."""
        t, state = self.t, self.state
        queues = {queue: (start, end) for queue, start, end in state.queues}
        for at, queue in enumerate(self.compiled.queues):
            queues[queue] = t[self.queue_starts + at], t[self.queue_ends + at]
        streams = dict(state.streams)
        for at, stream in enumerate(self.compiled.collective_streams):
            streams[stream] = t[self.streams + at]
        return State(
            engines=tuple(t[:COUNT]),
            generators=tuple(t[self.generators : self.queue_starts]),
            queues=tuple((queue, *times) for queue, times in sorted(queues.items())),
            streams=tuple(sorted(streams.items())),
            link=t[self.link],
            dma=t[self.free],
            gaps=tuple(self.open_gaps()),
            dma_end=t[self.active_end],
            tables=self.tables,
            heat=self.heat,
        )

    # Running

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

    def step(self, leaf: Leaf) -> None:
        waits: tuple[tuple[int, int], ...] = ()
        if leaf.waits:
            counters = self.counters
            waits = tuple(
                [
                    (
                        wait.semaphore,
                        wait.base + sum([factor * counters[at] for at, factor in wait.terms]),
                    )
                    for wait in leaf.waits
                ]
            )
        if self.pending[leaf.engine] or not self.issue(leaf, waits):
            self.pending[leaf.engine].append(_Pending(leaf, waits))
            self.waiting += 1
        if self.signalled:
            self.signalled = False
            if self.waiting:
                self.drain()

    def drain(self) -> None:
        """Instructions that wait, as far as semaphores let them."""
        progress = True
        while progress:
            progress = False
            for queue in self.pending:
                while queue and self.issue(*queue[0]):
                    queue.popleft()
                    self.waiting -= 1
                    progress = True
        self.signalled = False

    def finish(self) -> None:
        """What waits when all is issued: for ever, unless a part of the signals is left out."""
        self.drain()
        while self.waiting:
            if not self.compiled.is_partial:
                names = [
                    self.compiled.instructions[queue[0].leaf.number].mnemonic
                    for queue in self.pending
                    if queue
                ]
                raise MalformedProgramError(
                    f"engines wait for ever, at {', '.join(names)}: semaphores do not reach their"
                    " counts. Verify the program."
                )
            for queue in self.pending:
                if queue:
                    first = queue.popleft()
                    reached = tuple(
                        (semaphore, min(count, self.semaphores[semaphore].total))
                        for semaphore, count in first.waits
                    )
                    queue.appendleft(_Pending(first.leaf, reached))
                    break
            self.drain()

    def issue(self, leaf: Leaf, waits: tuple[tuple[int, int], ...]) -> bool:
        """Puts an instruction into its engine's time; False: a semaphore is not there yet."""
        t = self.t
        engine = leaf.engine
        free = t[engine]
        start = free
        for semaphore, count in waits:
            if count > 0:
                known = self.semaphores[semaphore]
                if known.total < count:
                    return False
                reached = known.times[bisect_left(known.counts, count)] + self.wake
                if reached > start:
                    start = reached
        for before, early in leaf.depends:
            reached = t[self.done + before] - early + self.wake
            if reached > start:
                start = reached
        for after in leaf.after:
            reached = self.completed.get(after, -self.wake) + self.wake
            if reached > start:
                start = reached
        self.simulated += 1
        if self.first is None or start < self.first:
            self.first = start
        duration = leaf.issue
        if leaf.tables is not None and leaf.tables != self.tables:
            self.tables = leaf.tables
            duration += self.table_load
        if engine == _TENSOR and self.constant:
            duration = self.throttled(duration, start - free)
        issued = start + duration
        t[engine] = issued
        t[self.busy + engine] += duration
        if leaf.transfer is not None:
            end = self.transfer(leaf, issued)
        elif leaf.message is not None:
            end = self.message(leaf, issued)
        else:
            end = issued + leaf.latency
        t[self.done + leaf.number] = end
        if end > t[self.end]:
            t[self.end] = end
        if end > t[self.ends + leaf.part]:
            t[self.ends + leaf.part] = end
        if leaf.signals:
            for semaphore, by in leaf.signals:
                self.semaphores[semaphore].add(end, by)
            self.signalled = True
        if len(self.events) < self.most_events:
            self.events.append(Event(leaf.number, "engine", start, issued, engine))
        return True

    def throttled(self, duration: int, idle: int) -> int:
        """How long a product takes at the clock that the engine's use so far allows."""
        heat = self.heat
        if idle and heat:
            heat = round(heat * math.exp(-idle / self.constant))
        if 2 * heat < _HEAT_ONE:
            duration = round(duration / self.slow_share)
        left = math.exp(-duration / self.constant)
        self.heat = min(_HEAT_MOST, round(_HEAT_ONE - (_HEAT_ONE - heat) * left))
        return duration

    def transfer(self, leaf: Leaf, issued: int) -> int:
        """A transfer on its queue and the DMA engines; returns when its signal comes."""
        asked = leaf.transfer
        assert asked is not None
        t = self.t
        ready = issued
        if asked.generator:
            at = self.generators + leaf.engine
            ready = max(ready, t[at]) + asked.generator
            t[at] = ready
        starts, ends = self.queue_starts + asked.queue, self.queue_ends + asked.queue
        ready = max(ready + asked.start, t[starts] + asked.interval)
        start, served, alone = self.serve(ready, asked.work)
        if served > ready + asked.work:
            left = asked.work - alone
            start, served = self.share(ready + alone, left, ends, start, served)
        finish = max(served, start + asked.duration, t[ends])
        t[starts] = start
        t[ends] = finish
        t[self.dma_busy] += asked.work
        t[self.dma_active] += max(0, finish - max(start, t[self.active_end]))
        t[self.active_end] = max(t[self.active_end], finish)
        if len(self.events) < self.most_events:
            self.events.append(Event(leaf.number, "dma", start, finish, asked.queue))
        return finish + asked.completion

    def share(self, ready: int, work: int, own: int, start: int, served: int) -> tuple[int, int]:
        """Work that is left when the engines get busy, at `ready`: they take turns between queues.

        It ends when all busy queues have had as much, or at `served`, behind everything. Each of
        the others is late by as much of it as goes before its own end: from its next transfer on,
        for what it has begun has its times.
        """
        t = self.t
        begin = max(ready, t[own])
        others = [
            end for end in range(self.queue_ends, self.streams) if end != own and t[end] > begin
        ]
        for end in others:
            late = min(t[end] + min(work, t[end] - begin), t[self.free])
            t[end] = max(t[end], late)
        return min(start, begin), min(served, begin + (1 + len(others)) * work)

    def serve(self, ready: int, work: int) -> tuple[int, int, int]:
        """First and last moment of some work on the DMA engines, in gaps and then behind all.

        The third is how much of it is done at once, before they get busy.
        """
        t = self.t
        free = t[self.free]
        if ready >= free:
            if ready > free:
                self.gaps.append((free, ready))
                if len(self.gaps) > _GAPS:
                    del self.gaps[0]
            t[self.free] = ready + work
            return ready, ready + work, work
        first: int | None = None
        alone = 0
        if self.gaps and self.gaps[-1][1] > ready:
            left: list[tuple[int, int]] = []
            for gap in self.gaps:
                begin = max(gap[0], ready)
                if begin >= gap[1] or (not work and first is not None):
                    left.append(gap)
                    continue
                used = min(work, gap[1] - begin)
                first = begin if first is None else first
                alone = used if begin == ready else alone
                last = begin + used
                work -= used
                if gap[0] < begin:
                    left.append((gap[0], begin))
                if last < gap[1]:
                    left.append((last, gap[1]))
            self.gaps = left[-_GAPS:]
            if not work and first is not None:
                return first, last, alone
        t[self.free] = free + work
        return (free if first is None else first), free + work, alone

    def message(self, leaf: Leaf, issued: int) -> int:
        """A collective on its stream and the links; returns when its signal comes."""
        asked = leaf.message
        assert asked is not None
        t = self.t
        at = self.streams + asked.stream
        start = max(issued, t[at])
        wire = max(start + asked.latency, t[self.link])
        end = wire + asked.wire
        t[self.link] = end
        t[at] = end
        t[self.collective_busy] += asked.latency + asked.wire
        if len(self.events) < self.most_events:
            self.events.append(Event(leaf.number, "collective", start, end, asked.stream))
        return end

    # Loops

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

    def open_gaps(self) -> list[tuple[int, int]]:
        """Idle times of the DMA engines that end after all engines that start transfers got there:
        what a loop that is jumped over keeps."""
        alive = min([self.t[engine] for engine in self.compiled.issuers], default=0)
        return [gap for gap in self.gaps if gap[1] > alive]

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
        size = len(self.t)
        for position in range(size):
            self.t[position] += steps[position]
        alive = now.same[0]
        assert isinstance(alive, int)
        number = alive // 2
        kept = self.gaps[len(self.gaps) - number :] if number else []
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
                _Pending(
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
    """Trips after which the same is added as before; None: not yet."""
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
