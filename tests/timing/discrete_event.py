"""Kernels in time, by events: the other witness of `neuronjax.timing`.

That goes through one kernel after the other in program order and jumps over loops. This takes every
instruction of every trip of all kernels, in the order of time: an engine starts its next
instruction at an event, of whichever kernel it is; transfers and collectives begin at events, and
signals come at events. Costs are the same, the way is not.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import After
from neuronjax.timing.encoding import ENGINES, PS, Compiled, Leaf, Nest, Streams
from neuronjax.timing.platform import Platform

TENSOR = ENGINES.index(Engine.TENSOR)


class Stalled(Exception):
    """Engines wait for signals that do not come."""


class Instruction(NamedTuple):
    """A leaf of a kernel in one trip: the counts that it waits for, and the runs it reads."""

    kernel: int
    leaf: Leaf
    waits: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, int], ...]
    run: int


def unrolled(kernel: int, streams: Streams) -> Iterator[Instruction]:
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
            yield Instruction(kernel, op, waits, reads, runs[op.number])

    yield from body(streams)


class DiscreteEvents:
    """One run of kernels, each of which overlaps some of those before it, on one physical core."""

    def __init__(self, kernels: Sequence[tuple[Compiled, int]], platform: Platform) -> None:
        calibration, timings = platform.calibration, platform.timings.engines
        self.wake = round(calibration.wake_ns * PS)
        self.table_load = round(calibration.activation_table_ns * PS)
        self.slow_share = timings.throttle_share
        self.constant = timings.throttle_window_ns * PS / math.log(2)
        self.kernels = kernels
        self.programs: defaultdict[int, deque[Instruction]] = defaultdict(deque)
        #: By kernel and leaf: runs that are not done, and the end of the last one.
        self.left: Counter[tuple[int, int]] = Counter()
        self.ended: dict[tuple[int, int], int] = {}
        for kernel, (compiled, _) in enumerate(kernels):
            for each in unrolled(kernel, compiled.streams):
                self.programs[each.leaf.engine].append(each)
                self.left[kernel, each.leaf.number] += 1
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self.numbers = itertools.count()
        self.free: defaultdict[int, int] = defaultdict(int)
        self.scheduled: set[int] = set()
        self.done: dict[tuple[int, int, int], int] = {}
        self.reached: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.generators: defaultdict[int, int] = defaultdict(int)
        self.queues: defaultdict[int, deque[tuple[Instruction, int]]] = defaultdict(deque)
        self.last_start: dict[int, int] = {}
        self.last_end: defaultdict[int, int] = defaultdict(int)
        self.streams: defaultdict[int, int] = defaultdict(int)
        self.engines_free = self.link = self.end = 0
        self.tables: str | None = None
        self.heat = 0

    def duration(self) -> int:
        """The time of the last end, ps. Stalled: signals do not come."""
        self.offer_all()
        while self.events:
            time, _, act = heapq.heappop(self.events)
            act(time)
        if any(self.programs.values()):
            raise Stalled
        return max(self.end, self.engines_free)

    def at(self, time: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), act))

    def offer_all(self) -> None:
        for engine in self.programs:
            self.offer(engine)

    def over(self, last: int) -> int | None:
        """When the kernels up to one are over; None: not yet."""
        if any(kernel <= last for kernel, _ in self.left):
            return None
        return max((time for (kernel, _), time in self.ended.items() if kernel <= last), default=0)

    def completed(self, kernel: int, after: After) -> int | None:
        """When all is complete that an instruction of a kernel comes after; None: not yet."""
        last = kernel - after.back
        leaves = []
        for number in range(last + 1):
            compiled, _ = self.kernels[number]
            for stream, order in zip(compiled.completing, compiled.orders, strict=True):
                if stream == after.stream:
                    end = len(order) - (after.left if number == last else 0)
                    leaves += [(number, leaf) for leaf in order[: max(0, end)]]
        if any(leaf in self.left for leaf in leaves):
            return None
        return max((self.ended[leaf] for leaf in leaves), default=-self.wake)

    def offer(self, engine: int) -> None:
        """Sets the start of an engine's next instruction, if all that it waits for has come."""
        if not self.programs[engine] or engine in self.scheduled:
            return
        head = self.programs[engine][0]
        start = self.free[engine]
        over = self.over(head.kernel - 1 - self.kernels[head.kernel][1])
        if over is None:
            return
        start = max(start, over)
        for after in head.leaf.after:
            when = self.completed(head.kernel, after)
            if when is None:
                return
            start = max(start, when + self.wake)
        for semaphore, count in head.waits:
            if count > 0:
                reached = self.reached[head.kernel, semaphore]
                when = next((t for t, total in reached if total >= count), None)
                if when is None:
                    return
                start = max(start, when + self.wake)
        early = dict(head.leaf.depends)
        for before, run in head.reads:
            if (head.kernel, before, run) in self.done:
                end = self.done[head.kernel, before, run]
                start = max(start, end - early[before] + self.wake)
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
            self.trigger(instruction, issued)
        elif leaf.message is not None:
            self.at(issued, lambda now: self.collective(instruction, now))
        else:
            end = issued + leaf.latency
            self.done[instruction.kernel, leaf.number, instruction.run] = end
            self.finish(instruction, end)
        self.end = max(self.end, issued)
        self.offer(engine)

    def throttled(self, duration: int, idle: int) -> int:
        """The moving average of the Tensor engine's use, in 1/4096."""
        heat = round(self.heat * math.exp(-idle / self.constant)) if idle else self.heat
        duration = round(duration / self.slow_share) if heat < 2048 else duration
        left = math.exp(-duration / self.constant)
        self.heat = min(round(4096 / math.sqrt(2)), round(4096 - (4096 - heat) * left))
        return duration

    def trigger(self, instruction: Instruction, issued: int) -> None:
        leaf = instruction.leaf
        asked = leaf.transfer
        assert asked is not None
        if asked.generator:
            issued = max(issued, self.generators[leaf.engine]) + asked.generator
            self.generators[leaf.engine] = issued
        queue = self.kernels[instruction.kernel][0].queues[asked.queue]
        waiting = self.queues[queue]
        waiting.append((instruction, issued + asked.start))
        if len(waiting) == 1:
            self.next_of(queue)

    def next_of(self, queue: int) -> None:
        instruction, ready = self.queues[queue][0]
        asked = instruction.leaf.transfer
        assert asked is not None
        if queue in self.last_start:
            ready = max(ready, self.last_start[queue] + asked.interval)
        self.at(ready, lambda time: self.serve(queue, time))

    def serve(self, queue: int, ready: int) -> None:
        """The DMA engines serve who is ready first."""
        instruction, _ = self.queues[queue].popleft()
        asked = instruction.leaf.transfer
        assert asked is not None
        start = max(ready, self.engines_free)
        self.engines_free = start + asked.work
        end = max(start + asked.work, start + asked.duration, self.last_end[queue])
        self.last_start[queue], self.last_end[queue] = start, end
        self.finish(instruction, end + asked.completion)
        if self.queues[queue]:
            self.next_of(queue)

    def collective(self, instruction: Instruction, issued: int) -> None:
        asked = instruction.leaf.message
        assert asked is not None
        stream = self.kernels[instruction.kernel][0].collective_streams[asked.stream]
        start = max(issued, self.streams[stream])
        end = max(start + asked.latency, self.link) + asked.wire
        self.link = self.streams[stream] = end
        self.finish(instruction, end)

    def finish(self, instruction: Instruction, end: int) -> None:
        self.end = max(self.end, end)
        self.at(end, lambda time: self.signal(instruction, time))

    def signal(self, instruction: Instruction, time: int) -> None:
        key = instruction.kernel, instruction.leaf.number
        self.ended[key] = time
        self.left[key] -= 1
        if not self.left[key]:
            del self.left[key]
        for semaphore, by in instruction.leaf.signals:
            known = self.reached[instruction.kernel, semaphore]
            known.append((time, (known[-1][1] if known else 0) + by))
        self.offer_all()


def instruction_runs(streams: Streams) -> int:
    """The instructions of a kernel in all trips of its loops."""
    return sum(each.weight if isinstance(each, Nest) else 1 for each in streams)


def without_competition(streams: Streams) -> Streams:
    """Transfers take as long, but nothing of the DMA engines' time."""
    return tuple(
        each._replace(body=without_competition(each.body))
        if isinstance(each, Nest)
        else each._replace(transfer=each.transfer and each.transfer._replace(work=0))
        for each in streams
    )
