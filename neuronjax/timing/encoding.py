"""A kernel as integers: what the simulation reads, and what tells equal kernels from others.

Costs are looked up once per instruction; times become integers in ps, names become indices. Two
kernels with equal streams take equal times, whatever their buffers are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import After, Instruction, Semaphore
from neuronjax.program.program import If, Kernel, Loop, Node, While
from neuronjax.program.streams import completing, is_static, on_core
from neuronjax.program.walk import leaves
from neuronjax.timing.cost import Cost
from neuronjax.timing.pipelining import Relation, depends
from neuronjax.timing.platform import Platform
from neuronjax.timing.table import cost_of

PS = 1_000
"""Picoseconds in a nanosecond."""

ENGINES: tuple[Engine | None, ...] = (*Engine, None)
"""Instruction streams by index; the last is the host's."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a program does not say. Measured trips are by loop variable, or register of a while."""

    trips: Mapping[str, int] = field(hash=False, default_factory=dict)
    #: Trips of a while, and of a loop whose register has no limit.
    unknown_trips: int = 1

    def trips_of(self, loop: Loop | While) -> int:
        """Trips that are measured, or usual, or the most there can be, or the assumed number."""
        name = loop.variable if isinstance(loop, Loop) else loop.register.name
        known = loop.usual_trips if isinstance(loop, Loop) else None
        return self.trips.get(name, self.unknown_trips if known is None else known)


class Count(NamedTuple):
    """A wait: the semaphore, and base + Σ factor · counter of a loop that it waits for."""

    semaphore: int
    base: int
    terms: tuple[tuple[int, int], ...]


class TransferTimes(NamedTuple):
    """A transfer in ps: `work` on all DMA engines together, at least `duration` from its start."""

    queue: int
    work: int
    duration: int
    start: int
    completion: int
    interval: int
    generator: int


class MessageTimes(NamedTuple):
    """A collective in ps."""

    stream: int
    latency: int
    wire: int


class Leaf(NamedTuple):
    """An instruction. Times are ps."""

    number: int
    engine: int
    issue: int
    latency: int
    tables: str | None
    transfer: TransferTimes | None
    message: MessageTimes | None
    waits: tuple[Count, ...]
    signals: tuple[tuple[int, int], ...]
    #: Leaves of the same engine whose results it reads, and how long before their end it may begin.
    depends: tuple[tuple[int, int], ...]
    part: int
    #: The stream that it completes in, as an index of `Compiled.completing`.
    stream: int
    after: tuple[After, ...]


class Nest(NamedTuple):
    """A loop: `counter` goes from 0 to `trips` - 1."""

    counter: int
    trips: int
    body: tuple[Leaf | Nest, ...]
    #: Runs of leaves in all trips.
    weight: int


Streams = tuple[Leaf | Nest, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel for the simulation. `streams` is its structural key."""

    streams: Streams
    #: DMA queues and streams of collectives, by their numbers here.
    queues: tuple[int, ...]
    collective_streams: tuple[int, ...]
    #: What instructions complete in, as kernels after this one call it, and the leaves in each.
    completing: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    #: Whether no register decides what runs.
    is_static: bool
    #: All that its instructions come after.
    after: tuple[After, ...]
    semaphores: int
    counters: int
    #: Parts of the kernel; 1 if it has none.
    parts: int
    #: Engines that start transfers.
    issuers: tuple[int, ...]
    #: Whether waits may ask for more than comes: a condition was taken or not.
    is_partial: bool
    #: By leaf: the instruction and its cost, and how often it runs.
    instructions: tuple[Instruction, ...]
    costs: tuple[Cost, ...]
    times: tuple[int, ...]


def _ps(ns: float) -> int:
    return round(ns * PS)


def _weight(stream: Leaf | Nest) -> int:
    return stream.weight if isinstance(stream, Nest) else 1


def taken(node: If) -> tuple[Node, ...]:
    """The branch that is timed: the usual one, or that with more instructions, which is the longer
    one mostly."""
    if node.is_usual:
        return node.then
    return max((node.then, node.otherwise), key=lambda nodes: sum(1 for _ in leaves(nodes)))


class _Compiler:
    """Goes through a kernel once."""

    def __init__(self, platform: Platform, assumptions: Assumptions) -> None:
        self.platform = platform
        self.assumptions = assumptions
        self.semaphores: dict[Semaphore, int] = {}
        self.queues: dict[int, int] = {}
        self.streams: dict[int, int] = {}
        self.completing: dict[str, int] = {}
        self.orders: list[list[int]] = []
        self.counters = 0
        self.issuers: set[int] = set()
        self.is_partial = False
        self.instructions: list[Instruction] = []
        self.costs: list[Cost] = []
        self.times: list[int] = []
        self.wake = _ps(platform.calibration.wake_ns)
        #: By engine: leaves whose results may still be on their way, and for how long.
        self.recent: dict[int, list[tuple[int, int]]] = {}

    def nodes(self, nodes: tuple[Node, ...], loops: dict[str, int], times: int) -> Streams:
        streams: list[Leaf | Nest] = []
        for node in nodes:
            if isinstance(node, Instruction):
                streams.append(self.leaf(node, loops, times))
            elif isinstance(node, Loop):
                trips = self.assumptions.trips_of(node)
                streams += self.nest(node.body, trips, {**loops}, node.variable, times)
            elif isinstance(node, While):
                trips = self.assumptions.trips_of(node)
                streams += self.nest(node.condition + node.body, trips, {**loops}, None, times)
            elif isinstance(node, If):
                self.is_partial = True
                streams += self.nodes(taken(node), loops, times)
        return tuple(streams)

    def nest(
        self,
        body: tuple[Node, ...],
        trips: int,
        loops: dict[str, int],
        variable: str | None,
        times: int,
    ) -> Streams:
        if trips < 1:
            return ()
        counter = self.counters
        self.counters += 1
        if variable is not None:
            loops[variable] = counter
        inner = self.nodes(body, loops, times * trips)
        inner = self.wrapped(inner, variable)
        return (Nest(counter, trips, inner, trips * sum(map(_weight, inner))),)

    def wrapped(self, inner: Streams, variable: str | None) -> Streams:
        """A loop's body, whose first leaves may read what its last ones wrote a trip before."""
        by_engine: dict[int, list[Leaf]] = {}
        for part in inner:
            if isinstance(part, Leaf):
                by_engine.setdefault(part.engine, []).append(part)
        further: dict[int, tuple[tuple[int, int], ...]] = {}
        for stream in by_engine.values():
            late: list[tuple[int, int]] = []
            for leaf in stream:
                late = self.still_late(late, leaf)
            for leaf in stream:
                if not late:
                    break
                of_last_trip = [number for number, _ in late if number >= leaf.number]
                further[leaf.number] = self.depends(leaf.number, of_last_trip, variable)
                late = [(number, rest - leaf.issue) for number, rest in late if rest > leaf.issue]
        return tuple(
            part._replace(depends=tuple(dict.fromkeys((*part.depends, *further[part.number]))))
            if isinstance(part, Leaf) and further.get(part.number)
            else part
            for part in inner
        )

    def depends(
        self, index: int, before: list[int], variable: str | None
    ) -> tuple[tuple[int, int], ...]:
        """The leaves that one waits for, and how long before their last result it may begin.

        An engine that walks over elements in the order in which it wrote them follows itself.
        """
        relations: list[tuple[int, int]] = []
        for number in before:
            relation = depends(self.instructions[index], self.instructions[number], variable)
            if relation is Relation.AFTER:
                relations.append((number, 0))
            elif relation is Relation.BEHIND:
                spread = min(self.costs[number].spread_ns, self.costs[index].spread_ns)
                relations.append((number, _ps(spread)))
        return tuple(relations)

    def leaf(self, node: Instruction, loops: dict[str, int], times: int) -> Leaf:
        cost = cost_of(node, self.platform)
        index = len(self.instructions)
        engine = ENGINES.index(node.engine)
        if cost.transfer is not None:
            self.issuers.add(engine)
        self.instructions.append(node)
        self.costs.append(cost)
        self.times.append(times)
        recent = self.recent.get(engine, [])
        before = self.depends(index, [number for number, _ in recent], None)
        stream = self.completing.setdefault(completing(node), len(self.completing))
        if stream == len(self.orders):
            self.orders.append([])
        self.orders[stream].append(index)
        leaf = Leaf(
            number=index,
            engine=engine,
            issue=_ps(cost.issue_ns),
            latency=_ps(cost.latency_ns),
            tables=cost.tables,
            transfer=self.transfer(node, cost),
            message=self.message(node, cost),
            waits=tuple(self.count(wait.semaphore, wait.count, loops) for wait in node.waits),
            signals=tuple((self.semaphore(signal.semaphore), signal.by) for signal in node.signals),
            depends=before,
            part=node.part,
            stream=stream,
            after=node.after,
        )
        self.recent[engine] = self.still_late(recent, leaf)
        return leaf

    def still_late(self, late: list[tuple[int, int]], leaf: Leaf) -> list[tuple[int, int]]:
        """The leaves whose results may be on their way once `leaf` has been issued, itself among
        them: by number, and how long at most until others may read them."""
        rests = [(number, rest - leaf.issue) for number, rest in late if rest > leaf.issue]
        if leaf.transfer is None and leaf.message is None:
            rests.append((leaf.number, leaf.latency + self.wake))
        return rests

    def semaphore(self, semaphore: Semaphore) -> int:
        return self.semaphores.setdefault(semaphore, len(self.semaphores))

    def count(self, semaphore: Semaphore, count: Affine, loops: dict[str, int]) -> Count:
        terms = tuple((loops[name], factor) for name, factor in count.terms if name in loops)
        return Count(self.semaphore(semaphore), count.base, terms)

    def transfer(self, node: Instruction, cost: Cost) -> TransferTimes | None:
        asked = cost.transfer
        if asked is None:
            return None
        queue = node.queue if isinstance(node, DmaInstruction) else 0
        return TransferTimes(
            queue=self.queues.setdefault(queue, len(self.queues)),
            work=_ps(asked.engine_ns * asked.engines / self.platform.core.dma.engines),
            duration=_ps(asked.engine_ns),
            start=_ps(asked.start_ns),
            completion=_ps(asked.completion_ns),
            interval=_ps(asked.interval_ns),
            generator=_ps(asked.generator_ns),
        )

    def message(self, node: Instruction, cost: Cost) -> MessageTimes | None:
        asked = cost.message
        if asked is None:
            return None
        stream = node.stream if isinstance(node, CollectiveInstruction) else 0
        return MessageTimes(
            stream=self.streams.setdefault(stream, len(self.streams)),
            latency=_ps(asked.latency_ns),
            wire=_ps(asked.wire_ns),
        )


def compile_kernel(
    kernel: Kernel, platform: Platform, assumptions: Assumptions, core: int = 0
) -> Compiled:
    """A kernel as the simulation wants it, on a physical core."""
    compiler = _Compiler(platform, assumptions)
    streams = compiler.nodes(kernel.body, {}, 1)
    return Compiled(
        streams=streams,
        queues=tuple(compiler.queues),
        collective_streams=tuple(compiler.streams),
        completing=tuple(on_core(name, core) for name in compiler.completing),
        orders=tuple(map(tuple, compiler.orders)),
        is_static=is_static(kernel.body),
        after=tuple(
            dict.fromkeys(
                after for instruction in compiler.instructions for after in instruction.after
            )
        ),
        semaphores=len(compiler.semaphores),
        counters=compiler.counters,
        parts=max(1, len(kernel.parts)),
        issuers=tuple(sorted(compiler.issuers)),
        is_partial=compiler.is_partial,
        instructions=tuple(compiler.instructions),
        costs=tuple(compiler.costs),
        times=tuple(compiler.times),
    )
