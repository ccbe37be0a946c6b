"""The clocks of one core, and what instructions, transfers and collectives do to them.

Instructions are taken in program order, each engine at its own clock: an instruction starts when
its engine is free, its semaphores have their counts, and what it reads from its own engine is
there. One whose semaphores are not reached by then waits with all later ones of its engine. DMA
transfers keep the order of their queue, and share the DMA engines as one resource: a transfer fills
what earlier ones, in program order, have left free, and takes turns with other queues. Collectives
keep the order of their stream, and take turns on the links. Times are integers in ps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neuronjax.errors import MalformedProgramError
from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import After
from neuronjax.timing.encoding import ENGINES, PS, Compiled, Count, Leaf
from neuronjax.timing.platform import Platform
from neuronjax.timing.semaphores import Semaphore
from neuronjax.timing.state import COUNT, LONG_AGO, REST, State

_TENSOR = ENGINES.index(Engine.TENSOR)
_GAPS = 16
"""Idle times of the DMA engines that later transfers may fill."""

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


Awaited = Sequence[tuple[int, int]]
"""Semaphores, and the counts that they must reach."""


class Pending(NamedTuple):
    """An instruction that waits, with the counts that it waits for."""

    leaf: Leaf
    waits: Awaited


class Core:
    """The clocks of a core while it runs one kernel."""

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
        self.semaphores = [Semaphore() for _ in range(compiled.semaphores)]
        self.pending: list[deque[Pending]] = [deque() for _ in range(COUNT)]
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

    def step(self, leaf: Leaf) -> None:
        waits = self.awaited(leaf.waits) if leaf.waits else ()
        if self.pending[leaf.engine] or not self.issue(leaf, waits):
            self.pending[leaf.engine].append(Pending(leaf, waits))
            self.waiting += 1
        if self.signalled:
            self.signalled = False
            if self.waiting:
                self.drain()

    def awaited(self, waits: tuple[Count, ...]) -> Awaited:
        """Semaphores and the counts that are waited for in these trips of the loops."""
        counters = self.counters
        counts = []
        for semaphore, count, terms in waits:
            for at, factor in terms:
                count += factor * counters[at]
            counts.append((semaphore, count))
        return counts

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
                    f"engines wait forever at {', '.join(names)}: their semaphores never reach"
                    " the counts waited for. Check it with neuronjax.program.verify.verify."
                )
            for queue in self.pending:
                if queue:
                    first = queue.popleft()
                    reached = tuple(
                        (semaphore, min(count, self.semaphores[semaphore].total))
                        for semaphore, count in first.waits
                    )
                    queue.appendleft(Pending(first.leaf, reached))
                    break
            self.drain()

    def issue(self, leaf: Leaf, waits: Awaited) -> bool:
        """Puts an instruction into its engine's time; False: a semaphore is not there yet."""
        (number, engine, duration, latency, tables, transfer, message, _, signals, depends, part,
         _, after) = leaf  # fmt: skip
        t, semaphores, wake = self.t, self.semaphores, self.wake
        free = start = t[engine]
        for semaphore, count in waits:
            if count > 0:
                known = semaphores[semaphore]
                if known.total < count:
                    return False
                reached = known.reached(count) + wake
                if reached > start:
                    start = reached
        for before, early in depends:
            reached = t[self.done + before] - early + wake
            if reached > start:
                start = reached
        for stream in after:
            reached = self.completed.get(stream, -wake) + wake
            if reached > start:
                start = reached
        self.simulated += 1
        if self.first is None or start < self.first:
            self.first = start
        if tables is not None and tables != self.tables:
            self.tables = tables
            duration += self.table_load
        if engine == _TENSOR and self.constant:
            duration = self.throttled(duration, start - free)
        issued = start + duration
        t[engine] = issued
        t[self.busy + engine] += duration
        if transfer is not None:
            end = self.transfer(leaf, issued)
        elif message is not None:
            end = self.message(leaf, issued)
        else:
            end = issued + latency
        t[self.done + number] = end
        if end > t[self.end]:
            t[self.end] = end
        if end > t[self.ends + part]:
            t[self.ends + part] = end
        if signals:
            for semaphore, by in signals:
                semaphores[semaphore].add(end, by)
            self.signalled = True
        if self.most_events and len(self.events) < self.most_events:
            self.events.append(Event(number, "engine", start, issued, engine))
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

    def open_gaps(self) -> list[tuple[int, int]]:
        """Idle times of the DMA engines, from where all engines that start transfers have got to:
        what a loop that is jumped over keeps."""
        alive = min([self.t[engine] for engine in self.compiled.issuers], default=0)
        return [(max(begin, alive), end) for begin, end in self.gaps if end > alive]
