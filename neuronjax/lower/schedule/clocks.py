"""A core's engines and queues while nodes run one after the other, and how long that takes.

The same picture as `timing` has, in less detail: engines run in order, transfers keep the order of
their queue and share the DMA engines, results are there a latency after the instruction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.lower.prices import Price, Prices
from neuronjax.lower.schedule.precedence import Before, Effects, Shared, effects, precedence
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node

_NEVER = (-1e9, 0.0)
"""Start and end of a transfer of a queue that has had none."""

Line = Engine | None
"""The stream of instructions of an engine; None: the host's."""


class Span(NamedTuple):
    """Busy time of a line, and from when to when after the beginning of a node it is taken."""

    line: Line
    busy: float
    first: float
    last: float


class Job(NamedTuple):
    """A node as clocks see it.

    The line of the first of `spans` decides when it begins. `price` and `queue` are those of a
    single instruction, `duration` is that of a loop.
    """

    spans: tuple[Span, ...]
    price: Price | None
    queue: int | None
    duration: float
    #: Work on the DMA engines.
    dma_work: float
    #: What one more iteration of a loop takes.
    period: float = 0.0

    @property
    def line(self) -> Line:
        """The line that decides when it begins."""
        return self.spans[0].line


@dataclass(slots=True)
class Clocks:
    """The times at which lines, queues and the DMA engines are free, in ns."""

    prices: Prices
    #: Idle times of the DMA engines that are remembered.
    most_gaps: int
    lines: dict[Line, float] = field(default_factory=dict)
    #: Queue -> start and end of its newest transfer.
    queues: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: When the DMA engines are free, and the newest of the times before it at which they were idle.
    dma: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    tables: str | None = None

    def free(self, job: Job) -> float:
        """The time at which all lines have time for a job."""
        return max(self.lines.get(span.line, 0.0) - span.first for span in job.spans)

    def idlest(self, queue: int, rings: int) -> int:
        """The queue that has had nothing to do for the longest time, of every other one.

        Even numbers are those of loads, odd ones of stores: what waits for results holds up no
        load.
        """
        return min(range(queue % 2, rings, 2), key=lambda ring: self.queues.get(ring, _NEVER))

    def run(self, job: Job, start: float) -> float:
        """Runs a job from `start` on; returns when its results are there."""
        price = job.price
        if price is None:
            start = max(start, self.free(job))
            for span in job.spans:
                self.lines[span.line] = start + span.last
            self.dma = max(self.dma, start) + job.dma_work
            return start + job.duration
        line = job.line
        issued = start + price.issue
        if price.tables is not None and price.tables != self.tables:
            self.tables = price.tables
            issued += self.prices.tables_ns
        self.lines[line] = issued
        if price.move is None or job.queue is None:
            return issued + price.latency
        move = price.move
        begun, ended = self.queues.get(job.queue, _NEVER)
        begin = max(issued + move.generator + move.start, begun + move.interval)
        served = self.served(begin, move.work)
        if served > begin + move.work:
            served = self.in_turns(max(begin, ended), move.work, served)
        end = max(served, begin + move.duration, ended)
        self.queues[job.queue] = (begin, end)
        return end + move.completion

    def in_turns(self, begin: float, work: float, served: float) -> float:
        """The end of work that begins while the DMA engines are busy: they take turns between
        queues, and those that go before its end are late by as much; at the latest when `served`,
        behind all other work."""
        others = [queue for queue, (_, last) in self.queues.items() if last > begin]
        for queue in others:
            start, last = self.queues[queue]
            late = min(last + min(work, last - begin), self.dma)
            self.queues[queue] = (start, max(last, late))
        return min(served, begin + (1 + len(others)) * work)

    def served(self, begin: float, work: float) -> float:
        """The time at which the DMA engines are done with work that may begin at some time: in
        gaps, and then behind all other work."""
        if begin >= self.dma:
            if begin > self.dma:
                self.gaps.append((self.dma, begin))
                del self.gaps[: -self.most_gaps]
            self.dma = begin + work
            return self.dma
        if self.gaps and self.gaps[-1][1] > begin:
            left: list[tuple[float, float]] = []
            for at, (first, last) in enumerate(self.gaps, 1):
                start = max(first, begin)
                used = min(work, max(0.0, last - start))
                if used <= 0.0:
                    left.append((first, last))
                    continue
                work -= used
                end = start + used
                left += [gap for gap in ((first, start), (end, last)) if gap[0] < gap[1]]
                if work <= 0.0:
                    self.gaps = [*left, *self.gaps[at:]][-self.most_gaps :]
                    return end
            self.gaps = left[-self.most_gaps :]
        self.dma += work
        return self.dma


class Iteration(NamedTuple):
    """The end of an iteration, and when lines were first taken and are free after it."""

    end: float
    firsts: dict[Line, float]
    lines: dict[Line, float]


class Timer:
    """Jobs of nodes, and times of lists of them."""

    def __init__(self, prices: Prices, shared: Shared, tuning: Tuning) -> None:
        self.prices = prices
        self.tuning = tuning
        self.shared = shared
        self._jobs: dict[int, tuple[Node, Job]] = {}
        self._effects: dict[int, tuple[Node, Effects]] = {}
        self._loops: dict[tuple[int, str, int], tuple[tuple[Node, ...], Job]] = {}
        self._ties: dict[tuple[int, str | None, int], tuple[tuple[Node, ...], Before]] = {}

    def clocks(self) -> Clocks:
        """Returns the clocks of a core at the beginning."""
        return Clocks(self.prices, self.tuning.clock_gaps)

    def job(self, node: Node) -> Job:
        """A node as clocks see it."""
        known = self._jobs.get(id(node))
        if known is None:
            known = self._jobs[id(node)] = (node, self._job(node))
        return known[1]

    def effects(self, node: Node) -> Effects:
        """What a node touches."""
        known = self._effects.get(id(node))
        if known is None:
            known = self._effects[id(node)] = (node, effects(node))
        return known[1]

    def before(self, nodes: tuple[Node, ...], loop: Loop | None) -> Before:
        """What orders nodes, in as many iterations of the loop about them as are looked at."""
        variable, trips = _first_trips(nodes, loop, self.tuning)
        known = self._ties.get((id(nodes), variable, trips))
        if known is None:
            touched = [self.effects(node) for node in nodes]
            later = [own.later(variable, index) for index in range(trips) for own in touched]
            known = (nodes, precedence(later, self.shared))
            self._ties[id(nodes), variable, trips] = known
        return known[1]

    def reorder(
        self,
        nodes: tuple[Node, ...],
        order: Sequence[int],
        jobs: Sequence[Job],
        before: Before,
        loop: Loop | None,
    ) -> None:
        """Takes note of nodes that are others in another order, with the jobs of those.

        `before` is what orders the others: orders among iterations are the same for both.
        """
        self._jobs.update(
            (id(node), (node, jobs[position])) for node, position in zip(nodes, order, strict=True)
        )
        size = len(nodes)
        place = [0] * size
        for index, position in enumerate(order):
            place[position] = index
        places = [first + at for first in range(0, len(before), size) for at in place]
        ties = [
            {places[other]: reads for other, reads in before[first + position].items()}
            for first in range(0, len(before), size)
            for position in order
        ]
        self._ties[id(nodes), *_first_trips(nodes, loop, self.tuning)] = (nodes, ties)

    def _job(self, node: Node) -> Job:
        if isinstance(node, Instruction):
            price = self.prices.of(node)
            queue = node.queue if isinstance(node, DmaInstruction) else None
            span = Span(node.engine, price.issue, 0.0, price.issue)
            dma_work = price.move.work if price.move is not None else 0.0
            return Job((span,), price, queue, 0.0, dma_work)
        assert isinstance(node, Loop)
        assert isinstance(node.trips, int)
        key = (id(node.body), node.variable, node.trips)
        if key not in self._loops:
            self._loops[key] = (node.body, self._loop(node))
        return self._loops[key][1]

    def _loop(self, loop: Loop) -> Job:
        """A loop: some iterations, and so on as the last of them."""
        assert isinstance(loop.trips, int)
        few = self._iterations(loop.body, loop)
        left = loop.trips - len(few)
        busy: dict[Line, float] = {}
        dma_work = 0.0
        for node in loop.body:
            job = self.job(node)
            dma_work += loop.trips * job.dma_work
            for span in job.spans:
                busy[span.line] = busy.get(span.line, 0.0) + loop.trips * span.busy
        spans = []
        for line, time in sorted(busy.items(), key=lambda item: -item[1]):
            last, period = few[-1].lines[line], 0.0
            if left:
                period = last - few[-2].lines[line]
            spans.append(Span(line, time, few[0].firsts[line], last + left * period))
        period = few[-1].end - few[-2].end if len(few) > 1 else few[0].end
        return Job(tuple(spans), None, None, few[-1].end + left * period, dma_work, period)

    def work(self, nodes: Sequence[Node]) -> float:
        """What the busiest engine, or all DMA engines together, have to do for nodes."""
        busy: dict[Line, float] = {}
        dma_work = 0.0
        for node in nodes:
            job = self.job(node)
            dma_work += job.dma_work
            for span in job.spans:
                busy[span.line] = busy.get(span.line, 0.0) + span.busy
        return max(dma_work, *busy.values(), 0.0)

    def time(self, nodes: tuple[Node, ...]) -> float:
        """How long nodes take, run in order."""
        return self._iterations(nodes, None)[0].end

    def _iterations(self, body: tuple[Node, ...], loop: Loop | None) -> list[Iteration]:
        """The first iterations of a body, run in order."""
        before = self.before(body, loop)
        jobs = [self.job(node) for node in body] * (len(before) // len(body))
        firsts: dict[Line, float] = {}
        iterations: list[Iteration] = []
        latest = 0.0
        for index, (clocks, start, end) in enumerate(self._run(jobs, before, 0)):
            for span in jobs[index].spans:
                firsts.setdefault(span.line, start + span.first)
            latest = max(latest, end)
            if (index + 1) % len(body) == 0:
                iterations.append(Iteration(latest, firsts, dict(clocks.lines)))
        return iterations

    def ends(self, nodes: tuple[Node, ...], first: int = 0) -> list[float]:
        """The times at which all nodes from `first` to each one have run, if they begin alone."""
        jobs = [self.job(node) for node in nodes]
        ends = (end for _, _, end in self._run(jobs, self.before(nodes, None), first))
        return list(itertools.accumulate(ends, max))

    def _run(
        self, jobs: Sequence[Job], before: Before, first: int
    ) -> Iterator[tuple[Clocks, float, float]]:
        """Runs jobs from the number `first` on: the clocks, and each one's start and end."""
        clocks = self.clocks()
        ends = [0.0] * len(jobs)
        for index in range(first, len(jobs)):
            job = jobs[index]
            start = clocks.free(job)
            for other, reads in before[index].items():
                if other >= first:
                    start = max(start, self.ready(jobs[other], job, ends[other], reads))
            ends[index] = clocks.run(job, start)
            yield clocks, start, ends[index]

    def ready(self, earlier: Job, job: Job, end: float, reads: bool) -> float:
        """The time at which a job may begin because of an earlier one that ends at `end`."""
        if earlier.price is None or job.price is None:
            return end
        if earlier.queue is not None:
            is_same = earlier.queue == job.queue and earlier.line is job.line
            return 0.0 if is_same else end + self.prices.wake_ns
        if job.line is not earlier.line:
            return end + self.prices.wake_ns
        if not reads or job.queue is not None:
            return 0.0
        spread = min(earlier.price.spread, job.price.spread)
        return end - spread + self.prices.wake_ns


def _first_trips(body: Sequence[Node], loop: Loop | None, tuning: Tuning) -> tuple[str | None, int]:
    """The variable of the loop about a body, and how many of its iterations are looked at."""
    if loop is None:
        return None, 1
    assert isinstance(loop.trips, int)
    is_long = len(body) > tuning.clock_long
    return loop.variable, min(loop.trips, max(2, tuning.clock_trips - is_long))
