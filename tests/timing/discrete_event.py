"""A kernel in time, by events: the other witness of `neuronjax.timing.simulate`.

That goes through a kernel in program order and jumps over loops. This takes every instruction of
every trip, in the order of time: an engine starts its next instruction at an event, transfers and
collectives begin at events, and signals come at events. Costs are the same, the way is not.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from neuronjax.machine.specs import Engine
from neuronjax.timing.encoding import ENGINES, PS, Compiled, Leaf, Nest, Streams
from neuronjax.timing.platform import Platform

TENSOR = ENGINES.index(Engine.TENSOR)


class Stalled(Exception):
    """Engines wait for signals that do not come."""


class Instruction(NamedTuple):
    """A leaf in one trip: the counts that it waits for, and the runs whose results it reads."""

    leaf: Leaf
    waits: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, int], ...]
    run: int


def unrolled(streams: Streams) -> Iterator[Instruction]:
    """All instructions in program order; runs are numbered by leaf."""
    runs: defaultdict[int, int] = defaultdict(int)
    counters: dict[int, int] = {}

    def body(ops: Streams) -> Iterator[Instruction]:
        for op in ops:
            if isinstance(op, Nest):
                for trip in range(op.trips):
                    counters[op.counter] = trip
                    yield from body(op.body)
                continue
            waits = tuple(
                (wait.semaphore, wait.base + sum(f * counters[at] for at, f in wait.terms))
                for wait in op.waits
            )
            # The last run of a leaf that comes before in program order.
            reads = tuple((before, runs[before]) for before, _ in op.depends if runs[before])
            runs[op.number] += 1
            yield Instruction(op, waits, reads, runs[op.number])

    yield from body(streams)


class DiscreteEvents:
    """One run of a kernel."""

    def __init__(self, compiled: Compiled, platform: Platform) -> None:
        calibration, timings = platform.calibration, platform.timings.engines
        self.wake = round(calibration.wake_ns * PS)
        self.table_load = round(calibration.activation_table_ns * PS)
        self.slow_share = timings.throttle_share
        self.constant = timings.throttle_window_ns * PS / math.log(2)
        self.programs: defaultdict[int, deque[Instruction]] = defaultdict(deque)
        for each in unrolled(compiled.streams):
            self.programs[each.leaf.engine].append(each)
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self.numbers = itertools.count()
        self.free: defaultdict[int, int] = defaultdict(int)
        self.scheduled: set[int] = set()
        self.done: dict[tuple[int, int], int] = {}
        self.reached: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.generators: defaultdict[int, int] = defaultdict(int)
        self.queues: defaultdict[int, deque[tuple[Leaf, int]]] = defaultdict(deque)
        self.last_start: dict[int, int] = {}
        self.last_end: defaultdict[int, int] = defaultdict(int)
        self.streams: defaultdict[int, int] = defaultdict(int)
        self.engines_free = self.link = self.end = 0
        self.tables: str | None = None
        self.heat = 0

    def duration(self) -> int:
        """The time of the last end, ps. Stalled: signals do not come."""
        for engine in self.programs:
            self.offer(engine)
        while self.events:
            time, _, act = heapq.heappop(self.events)
            act(time)
        if any(self.programs.values()):
            raise Stalled
        return max(self.end, self.engines_free)

    def at(self, time: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), act))

    def offer(self, engine: int) -> None:
        """Sets the start of an engine's next instruction, if all that it waits for has come."""
        if not self.programs[engine] or engine in self.scheduled:
            return
        head = self.programs[engine][0]
        start = self.free[engine]
        for semaphore, count in head.waits:
            if count > 0:
                when = next((t for t, total in self.reached[semaphore] if total >= count), None)
                if when is None:
                    return
                start = max(start, when + self.wake)
        early = dict(head.leaf.depends)
        for before, run in head.reads:
            if (before, run) in self.done:
                start = max(start, self.done[before, run] - early[before] + self.wake)
        self.scheduled.add(engine)
        self.at(start, lambda time: self.start(engine, time))

    def start(self, engine: int, time: int) -> None:
        self.scheduled.discard(engine)
        instruction = self.programs[engine].popleft()
        leaf, duration = instruction.leaf, instruction.leaf.issue
        if leaf.tables is not None and leaf.tables != self.tables:
            self.tables = leaf.tables
            duration += self.table_load
        if engine == TENSOR and self.constant:
            duration = self.throttled(duration, time - self.free[engine])
        issued = self.free[engine] = time + duration
        if leaf.transfer is not None:
            self.trigger(leaf, issued)
        elif leaf.message is not None:
            self.at(issued, lambda now: self.collective(leaf, now))
        else:
            end = issued + leaf.latency
            self.done[leaf.number, instruction.run] = end
            self.finish(leaf, end)
        self.end = max(self.end, issued)
        self.offer(engine)

    def throttled(self, duration: int, idle: int) -> int:
        """The moving average of the Tensor engine's use, in 1/4096."""
        heat = round(self.heat * math.exp(-idle / self.constant)) if idle else self.heat
        duration = round(duration / self.slow_share) if heat < 2048 else duration
        left = math.exp(-duration / self.constant)
        self.heat = min(round(4096 / math.sqrt(2)), round(4096 - (4096 - heat) * left))
        return duration

    def trigger(self, leaf: Leaf, issued: int) -> None:
        asked = leaf.transfer
        assert asked is not None
        if asked.generator:
            issued = max(issued, self.generators[leaf.engine]) + asked.generator
            self.generators[leaf.engine] = issued
        waiting = self.queues[asked.queue]
        waiting.append((leaf, issued + asked.start))
        if len(waiting) == 1:
            self.next_of(asked.queue)

    def next_of(self, queue: int) -> None:
        leaf, ready = self.queues[queue][0]
        assert leaf.transfer is not None
        if queue in self.last_start:
            ready = max(ready, self.last_start[queue] + leaf.transfer.interval)
        self.at(ready, lambda time: self.serve(queue, time))

    def serve(self, queue: int, ready: int) -> None:
        """The DMA engines serve who is ready first."""
        leaf, _ = self.queues[queue].popleft()
        asked = leaf.transfer
        assert asked is not None
        start = max(ready, self.engines_free)
        self.engines_free = start + asked.work
        end = max(start + asked.work, start + asked.duration, self.last_end[queue])
        self.last_start[queue], self.last_end[queue] = start, end
        self.finish(leaf, end + asked.completion)
        if self.queues[queue]:
            self.next_of(queue)

    def collective(self, leaf: Leaf, issued: int) -> None:
        asked = leaf.message
        assert asked is not None
        start = max(issued, self.streams[asked.stream])
        end = max(start + asked.latency, self.link) + asked.wire
        self.link = self.streams[asked.stream] = end
        self.finish(leaf, end)

    def finish(self, leaf: Leaf, end: int) -> None:
        self.end = max(self.end, end)
        if leaf.signals:
            self.at(end, lambda time: self.signal(leaf, time))

    def signal(self, leaf: Leaf, time: int) -> None:
        for semaphore, by in leaf.signals:
            known = self.reached[semaphore]
            known.append((time, (known[-1][1] if known else 0) + by))
        for engine in self.programs:
            self.offer(engine)
