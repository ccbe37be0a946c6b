"""A whole program in time: kernels one after the other, their ends and beginnings overlapped.

Within a kernel, see `simulate`. Between kernels:

* Kernels run in program order; those of a split run beside each other, and end with the last of
  them. While the last results of one are stored, and as far as its DMA
  engines are idle, the next one's first loads may run (its `lead`), unless it loads what the kernel
  before stored.
* What no kernel writes (weights, constants) is loaded while kernels before leave DMA engines idle,
  as far as SBUF has room beside their tiles: compilers schedule loads over the whole program. A
  kernel whose weights are there is simulated without their loads; one for which a part is there
  takes a time between both.
* A kernel of nothing but collectives runs beside others: it starts when what it reads is there, on
  its stream, and those that read its results wait.
* Loops repeat their kernels until all clocks advance by the same, then jump to their end.
* Kernels with equal streams are simulated once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.errors import MalformedProgramError
from neuronjax.machine.machine import Machine
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.control import Host, RegisterArithmetic, RegisterMove, SemaphoreEvent
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.operand import Access, Buffer, Kind, Memory
from neuronjax.program.program import (
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Part,
    Program,
    Split,
    Target,
    While,
)
from neuronjax.program.walk import kernels, label
from neuronjax.timing.encoding import (
    ENGINES,
    PS,
    Assumptions,
    Compiled,
    Nest,
    Streams,
    TransferTimes,
    compile_kernel,
    taken,
)
from neuronjax.timing.platform import Platform
from neuronjax.timing.room import room
from neuronjax.timing.simulate import Simulated, simulate
from neuronjax.timing.timeline import COLLECTIVE, DMA, Event, KernelTime, PartTime, Timeline

_LIGHT = (CollectiveInstruction, RegisterMove, RegisterArithmetic, SemaphoreEvent)

_ALONE = Program(name="kernel", target=Target("trainium1"), body=())
"""The program of a kernel that has none: only its lists of functions and aliases are looked at."""

HOST = "host"
NAMES: tuple[str, ...] = tuple(HOST if engine is None else engine.value for engine in ENGINES)
"""Names of `ENGINES`."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A kernel at one place: simulated, and the HBM buffers that it touches by its own names."""

    compiled: Compiled
    result: Simulated
    reads: frozenset[str]
    writes: frozenset[str]
    #: Stream and link time in ps of a kernel of nothing but collectives.
    stream: int | None
    wire: int
    #: DMA time in ps of what SBUF has room for, beside the tiles, by its end.
    room: int


@dataclass(frozen=True, slots=True)
class _Warm:
    """A kernel whose weights are in SBUF, and the DMA time in ps that they took before it."""

    result: Simulated
    work: int
    room: int


@dataclass(frozen=True, slots=True)
class _Span:
    """How a kernel runs with some of its weights in SBUF; times are ps."""

    duration: int
    lead: int
    tail: int
    dma_busy: int
    #: As of `_Timed`.
    room: int


@dataclass(slots=True)
class _Clocks:
    """The state between kernels; times are ps."""

    core: int = 0
    started: int = 0
    tail: int = 0
    #: DMA time that the last kernel left unused.
    idle: int = 0
    #: DMA time, unused so far, in which weights of later kernels are loaded.
    ahead: int = 0
    link: int = 0
    end: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    #: Buffer -> when it is written, and when it is read no more.
    written: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    #: Buffer -> when a collective is done with it.
    beside: dict[str, int] = field(default_factory=dict)

    def vector(self) -> dict[object, int]:
        """All clocks by name."""
        return {
            "core": self.core,
            "started": self.started,
            "link": self.link,
            "end": self.end,
            **{("stream", key): value for key, value in self.streams.items()},
            **{("written", key): value for key, value in self.written.items()},
            **{("read", key): value for key, value in self.read.items()},
            **{("beside", key): value for key, value in self.beside.items()},
        }

    def advance(self, steps: Mapping[object, int]) -> None:
        """Adds to the clocks."""
        self.core += steps["core"]
        self.started += steps["started"]
        self.link += steps["link"]
        self.end += steps["end"]
        for key in self.streams:
            self.streams[key] += steps["stream", key]
        for name in self.written:
            self.written[name] += steps["written", name]
        for name in self.read:
            self.read[name] += steps["read", name]
        for name in self.beside:
            self.beside[name] += steps["beside", name]

    def there(self, reads: frozenset[str], writes: frozenset[str]) -> int:
        """When what is read is written, and what is overwritten has been read."""
        times = [self.written.get(name, 0) for name in reads | writes]
        return max([0, *times, *(self.read.get(name, 0) for name in writes)])

    def note(self, reads: frozenset[str], writes: frozenset[str], end: int) -> None:
        """That a kernel which touches buffers is over at `end`."""
        for name in reads:
            self.read[name] = max(self.read.get(name, 0), end)
        for name in writes:
            self.written[name] = max(self.written.get(name, 0), end)


@dataclass(slots=True)
class _Runs:
    """The runs of a kernel at one place, or of those beside it on other cores as well."""

    kernel: Kernel
    parts: tuple[_Timed, ...]
    start: int
    end: int
    count: int = 0
    #: Of the last run.
    duration: int = 0


class _Scheduler:
    """Goes through a program."""

    def __init__(self, program: Program, platform: Platform, assumptions: Assumptions) -> None:
        self.program = program
        self.platform = platform
        self.assumptions = assumptions
        self.functions: Mapping[str, Function] = {
            function.name: function for function in program.functions
        }
        self.roots = {alias.buffer: alias.of for alias in program.aliases}
        self.results: dict[tuple[Streams, bool, int], Simulated] = {}
        self.warm: dict[tuple[int, frozenset[str]], _Warm] = {}
        self.fixed = {
            buffer.name
            for buffer in program.buffers
            if buffer.kind in (Kind.ARGUMENT, Kind.CONSTANT)
        }
        self.timed: dict[int, _Timed] = {}
        self.runs: dict[str, _Runs] = {}
        self.clocks = _Clocks()
        self.simulated = 0
        self.assumed: dict[str, None] = {}

    # Nodes

    def nodes(self, nodes: tuple[Node, ...], path: str, names: Mapping[str, str]) -> None:
        for position, node in enumerate(nodes):
            here = f"{path}/{label(node, position)}"
            if isinstance(node, Kernel):
                self.kernels((node,), here, names)
            elif isinstance(node, Split):
                self.kernels(node.kernels, here, names)
            elif isinstance(node, Loop):
                self.repeat(node.body, self.trips(node), here, names)
            elif isinstance(node, While):
                self.repeat(node.condition + node.body, self.trips(node), here, names)
            elif isinstance(node, If):
                self.nodes(taken(node), here, names)
            elif isinstance(node, Call):
                self.call(node, here, names)

    def trips(self, node: Loop | While) -> int:
        trips = self.assumptions.trips_of(node)
        name = node.variable if isinstance(node, Loop) else node.register.name
        if (isinstance(node, While) or not isinstance(node.trips, int)) and (
            name not in self.assumptions.trips
        ):
            self.assumed[f"{name}: {trips} trips"] = None
        return trips

    def call(self, node: Call, path: str, names: Mapping[str, str]) -> None:
        function = self.functions.get(node.function)
        if function is None:
            raise MalformedProgramError(f"{path}: there is no function {node.function!r}.")
        passed = zip(function.parameters, node.arguments, strict=False)
        inner = {parameter.name: self.root(given, names) for parameter, given in passed}
        self.nodes(function.body, path, {**names, **inner})

    def repeat(
        self, body: tuple[Node, ...], trips: int, path: str, names: Mapping[str, str]
    ) -> None:
        """A loop over kernels: until a trip adds the same as the one before it."""
        history: list[tuple[dict[object, int], dict[str, int]]] = []
        trip = 0
        while trip < trips:
            self.nodes(body, path, names)
            trip += 1
            history.append(
                (self.clocks.vector(), {at: runs.count for at, runs in self.runs.items()})
            )
            del history[:-3]
            steps = _steady([clocks for clocks, _ in history])
            if steps is not None and trip < trips:
                left = trips - trip
                self.clocks.advance({name: left * step for name, step in steps.items()})
                before = history[-2][1]
                for at, count in history[-1][1].items():
                    runs = self.runs[at]
                    if count > before.get(at, 0):
                        runs.count += left * (count - before.get(at, 0))
                        runs.end += left * steps["core"]
                return

    # Kernels

    def root(self, buffer: Buffer, names: Mapping[str, str]) -> str:
        name = names.get(buffer.name, buffer.name)
        return self.roots.get(name, name)

    def kernels(self, kernels: tuple[Kernel, ...], path: str, names: Mapping[str, str]) -> None:
        """A kernel, or those that physical cores run beside each other."""
        parts = tuple(map(self.time, kernels))
        reads = frozenset(self.outer(name, names) for part in parts for name in part.reads)
        writes = frozenset(self.outer(name, names) for part in parts for name in part.writes)
        duration = parts[0].result.duration
        if parts[0].stream is not None:
            start, end = self.beside(parts[0], reads, writes)
        else:
            span = self.span_of(parts, names)
            duration = span.duration
            start, end = self.inline(span, reads, writes)
        self.clocks.end = max(self.clocks.end, end)
        kernel = kernels[0]
        runs = self.runs.setdefault(self.own(path, kernel), _Runs(kernel, parts, start, end))
        runs.end = end
        runs.duration = duration
        runs.count += 1

    def own(self, path: str, kernel: Kernel) -> str:
        """The path of a kernel; a second one of a name at one place has a number."""
        name, number = path, 1
        while name in self.runs and self.runs[name].kernel is not kernel:
            number += 1
            name = f"{path}#{number}"
        return name

    def outer(self, name: str, names: Mapping[str, str]) -> str:
        own_name = names.get(name, name)
        return self.roots.get(own_name, own_name)

    def span_of(self, parts: tuple[_Timed, ...], names: Mapping[str, str]) -> _Span:
        """Kernels beside each other, each with the DMA time that its own core had before."""
        ahead, spans, left = self.clocks.ahead, [], []
        for part in parts:
            self.clocks.ahead = ahead
            spans.append(self.span(part, names))
            left.append(self.clocks.ahead)
        self.clocks.ahead = min(left)
        duration = max(span.duration for span in spans)
        return _Span(
            duration=duration,
            lead=min(span.lead for span in spans),
            tail=duration - max(span.duration - span.tail for span in spans),
            dma_busy=max(span.dma_busy for span in spans),
            room=min(span.room for span in spans),
        )

    def span(self, timed: _Timed, names: Mapping[str, str]) -> _Span:
        """A kernel with as many of its weights in SBUF as there was time and room for."""
        cold = timed.result
        weights = frozenset(
            name
            for name in timed.reads - timed.writes
            if (root := self.outer(name, names)) in self.fixed and root not in self.clocks.written
        )
        warm = self.without_loads(timed, weights) if weights else None
        if warm is None or not warm.work:
            return _Span(cold.duration, cold.lead, cold.tail, cold.dma_busy, timed.room)
        loaded = min(self.clocks.ahead, warm.work)
        self.clocks.ahead -= loaded

        def between(first: int, last: int) -> int:
            return first + (last - first) * loaded // warm.work

        return _Span(
            duration=min(cold.duration, between(cold.duration, warm.result.duration)),
            lead=between(cold.lead, warm.result.lead),
            tail=between(cold.tail, warm.result.tail),
            dma_busy=between(cold.dma_busy, warm.result.dma_busy),
            room=between(timed.room, warm.room),
        )

    def without_loads(self, timed: _Timed, weights: frozenset[str]) -> _Warm:
        """A kernel that finds what it loads from some buffers in SBUF."""
        key = (id(timed), weights)
        if key not in self.warm:
            loads = {
                number
                for number, instruction in enumerate(timed.compiled.instructions)
                if isinstance(instruction, DmaInstruction) and _is_load(instruction, weights)
            }
            streams = _without(timed.compiled.streams, loads)
            known = (streams, timed.compiled.is_partial, timed.compiled.parts)
            if known not in self.results:
                compiled = dataclasses.replace(timed.compiled, streams=streams)
                self.results[known] = simulate(compiled, self.platform)
                self.simulated += self.results[known].simulated
            result = self.results[known]
            work = max(0, timed.result.dma_busy - result.dma_busy)
            self.warm[key] = _Warm(result, work, room(timed.compiled, result, self.platform))
        return self.warm[key]

    def inline(self, span: _Span, reads: frozenset[str], writes: frozenset[str]) -> tuple[int, int]:
        """A kernel on the engines, after the one before it."""
        clocks = self.clocks
        overlap = min(clocks.tail + span.lead, clocks.idle)
        start = max(clocks.started, clocks.core - overlap, self.available(reads, writes))
        end = max(start + span.duration, clocks.core)
        waited = max(0, start - clocks.core)
        clocks.started, clocks.core = start, end
        clocks.tail = min(span.tail, span.duration)
        clocks.idle = max(0, span.duration - span.dma_busy)
        clocks.ahead = min(clocks.ahead + waited + clocks.idle - overlap, span.room)
        clocks.ahead = max(0, clocks.ahead)
        clocks.note(reads, writes, end)
        return start, end

    def available(self, reads: frozenset[str], writes: frozenset[str]) -> int:
        """When a kernel on the engines may begin: it loads before it stores."""
        clocks = self.clocks
        beside = max([0, *(clocks.beside.get(name, 0) for name in reads | writes)])
        return max(beside, *(clocks.written.get(name, 0) for name in reads), 0)

    def beside(
        self, timed: _Timed, reads: frozenset[str], writes: frozenset[str]
    ) -> tuple[int, int]:
        """A kernel of collectives, when its operands are there."""
        clocks = self.clocks
        assert timed.stream is not None
        start = max(clocks.there(reads, writes), clocks.streams.get(timed.stream, 0))
        latency = timed.result.duration - timed.wire
        end = max(start + latency, clocks.link) + timed.wire
        clocks.streams[timed.stream] = end
        clocks.link = end if timed.wire else clocks.link
        clocks.note(reads, writes, end)
        for name in reads | writes:
            clocks.beside[name] = end
        return start, end

    def time(self, kernel: Kernel) -> _Timed:
        """A kernel, simulated unless one with equal streams was."""
        known = self.timed.get(id(kernel))
        if known is not None:
            return known
        compiled = compile_kernel(kernel, self.platform, self.assumptions)
        key = (compiled.streams, compiled.is_partial, compiled.parts)
        if key not in self.results:
            self.results[key] = simulate(compiled, self.platform)
            self.simulated += self.results[key].simulated
        self.note_assumptions(kernel, compiled, self.results[key])
        reads, writes = _buffers(compiled)
        streams = {
            instruction.stream
            for instruction in compiled.instructions
            if isinstance(instruction, CollectiveInstruction)
        }
        alone = bool(streams) and all(
            isinstance(instruction, _LIGHT) for instruction in compiled.instructions
        )
        wire = sum(cost.message.wire_ns for cost in compiled.costs if cost.message)
        timed = _Timed(
            compiled=compiled,
            result=self.results[key],
            reads=reads,
            writes=writes,
            stream=min(streams) if alone else None,
            wire=min(round(wire * PS), self.results[key].duration),
            room=room(compiled, self.results[key], self.platform),
        )
        self.timed[id(kernel)] = timed
        return timed

    def note_assumptions(self, kernel: Kernel, compiled: Compiled, result: Simulated) -> None:
        """What of a kernel's time no instruction or trip of its own says."""
        for instruction in compiled.instructions:
            if isinstance(instruction, Host):
                self.assumed[
                    f"{instruction.function} runs on the host; only its transfers take time"
                ] = None
        if result.averaged:
            self.assumed[
                f"{kernel.name}: {result.averaged} trips of a loop that finds no steady state are"
                " like those before them"
            ] = None


def _is_load(instruction: DmaInstruction, weights: frozenset[str]) -> bool:
    """Whether a transfer does nothing but bring some of these buffers on the chip."""
    read = [use.operand for use in instruction.uses() if use.role.is_read]
    written = [use.operand for use in instruction.uses() if use.role.is_write]
    return all(
        isinstance(operand, Access) and operand.memory is not Memory.HBM for operand in written
    ) and all(isinstance(operand, Access) and operand.buffer.name in weights for operand in read)


_NOTHING = TransferTimes(
    queue=0, work=0, duration=0, start=0, completion=0, interval=0, generator=0
)


def _without(streams: Streams, loads: set[int]) -> Streams:
    """The same instructions, of which some transfers take no time."""
    return tuple(
        stream._replace(body=_without(stream.body, loads))
        if isinstance(stream, Nest)
        else stream._replace(transfer=_NOTHING._replace(queue=stream.transfer.queue))
        if stream.number in loads and stream.transfer is not None
        else stream
        for stream in streams
    )


def _buffers(compiled: Compiled) -> tuple[frozenset[str], frozenset[str]]:
    """HBM buffers that a kernel reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for instruction in compiled.instructions:
        for use in instruction.uses():
            if isinstance(use.operand, Access) and use.operand.memory is Memory.HBM:
                if use.role.is_read:
                    reads.add(use.operand.buffer.name)
                if use.role.is_write:
                    writes.add(use.operand.buffer.name)
    return frozenset(reads), frozenset(writes)


def _steady(history: list[dict[object, int]]) -> dict[object, int] | None:
    """What each clock gains per trip, if all that move gain the same twice; else None."""
    if len(history) < 3 or not history[0].keys() == history[1].keys() == history[2].keys():
        return None
    first = {name: history[1][name] - time for name, time in history[0].items()}
    second = {name: history[2][name] - time for name, time in history[1].items()}
    if first != second or len(set(second.values()) - {0}) > 1:
        return None
    return second


def schedule(
    program: Program,
    machine: Machine | None = None,
    *,
    platform: Platform | None = None,
    assumptions: Assumptions | None = None,
) -> Timeline:
    """A program in time, without values.

    `machine` gives collectives their links; None: the smallest with the program's ranks. `platform`
    replaces both.

    UnsupportedProgramError: AWS publishes too little about the chip. MalformedProgramError: engines
    wait for ever.
    """
    platform = platform or Platform.of(program, machine)
    scheduler = _Scheduler(program, platform, assumptions or Assumptions())
    scheduler.nodes(program.body, program.name, {})
    return _timeline(scheduler)


def _timeline(scheduler: _Scheduler) -> Timeline:
    calibration, version = scheduler.platform.calibration, scheduler.platform.core.version
    prologue = calibration.prologue_ns[version]
    launch = prologue + calibration.epilogue_ns[version]
    times = []
    busy: dict[str, float] = {}
    work = _Work()
    for path, runs in scheduler.runs.items():
        busy_in_run = _busy([part.result for part in runs.parts])
        for name, time in busy_in_run.items():
            busy[name] = busy.get(name, 0.0) + time * runs.count
        own = _Work()
        for part in runs.parts:
            own.add(part.compiled, 1)
            work.add(part.compiled, runs.count)
        times.append(
            KernelTime(
                path=path,
                operations=runs.kernel.operations,
                sources=runs.kernel.sources,
                runs=runs.count,
                start_ns=prologue + runs.start / PS,
                end_ns=prologue + runs.end / PS,
                duration_ns=runs.duration / PS,
                busy_ns=busy_in_run,
                dma_active_ns=max(part.result.dma_active for part in runs.parts) / PS,
                critical=max(busy_in_run, key=lambda name: busy_in_run[name]),
                flops=own.flops,
                hbm_bytes=own.hbm_bytes,
                parts=_parts(runs),
            )
        )
    return Timeline(
        program=scheduler.program.name,
        total_ns=launch + max(scheduler.clocks.end, scheduler.clocks.core) / PS,
        launch_ns=launch,
        kernels=tuple(times),
        busy_ns={name: busy.get(name, 0.0) for name in (*NAMES, DMA, COLLECTIVE)},
        instructions=dict(work.instructions),
        hardware_instructions=dict(work.hardware),
        flops=work.flops,
        dma_bytes=work.dma_bytes,
        hbm_bytes=work.hbm_bytes,
        network_bytes=work.network_bytes,
        traffic=work.traffic,
        simulated_instructions=scheduler.simulated,
        assumed=tuple(scheduler.assumed),
    )


def _parts(runs: _Runs) -> tuple[PartTime, ...]:
    """A run's duration shared out over the parts of a kernel."""
    kernel, duration = runs.kernel, runs.duration / PS
    parts = kernel.parts or (Part(kernel.name, kernel.operations, kernel.sources),)
    ends = [
        max(ends_of_part)
        for ends_of_part in zip(*(timed.result.ends for timed in runs.parts), strict=True)
    ]
    reached = [0, *itertools.accumulate(ends, max)]
    whole = reached[-1] or 1
    return tuple(
        PartTime(
            name=part.name,
            operations=part.operations,
            sources=part.sources,
            duration_ns=duration * (end - begin) / whole,
        )
        for part, (begin, end) in zip(parts, itertools.pairwise(reached), strict=True)
    )


def _busy(results: Sequence[Simulated]) -> dict[str, float]:
    """Busy times of the core that is busiest, resource by resource."""
    times = [(*result.busy, result.dma_busy, result.collective_busy) for result in results]
    longest = map(max, zip(*times, strict=True))
    return {name: time / PS for name, time in zip((*NAMES, DMA, COLLECTIVE), longest, strict=True)}


class _Work:
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


def kernel_time(
    kernel: Kernel, platform: Platform, assumptions: Assumptions | None = None
) -> KernelTime:
    """One run of a kernel alone: what a compiler asks that chooses between kernels.

    MalformedProgramError: engines wait for ever.
    """
    scheduler = _Scheduler(_ALONE, platform, assumptions or Assumptions())
    scheduler.kernels((kernel,), kernel.name, {})
    return _timeline(scheduler).kernels[0]


def profile(
    program: Program,
    kernel: str,
    machine: Machine | None = None,
    *,
    platform: Platform | None = None,
    most_events: int = 10_000,
    assumptions: Assumptions | None = None,
) -> tuple[Event, ...]:
    """The first events of a kernel, named by its name or path, as if it ran alone from 0.

    KeyError: there is no such kernel.
    """
    platform = platform or Platform.of(program, machine)
    nodes = dict(_kernels(program))
    node = nodes.get(kernel) or {named.name: named for named in nodes.values()}[kernel]
    compiled = compile_kernel(node, platform, assumptions or Assumptions())
    result = simulate(compiled, platform, most_events)
    lanes: Mapping[str, Callable[[int], str]] = {
        "engine": NAMES.__getitem__,
        "dma": "queue {}".format,
        "collective": "stream {}".format,
    }
    return tuple(
        Event(
            mnemonic=compiled.instructions[event.leaf].mnemonic,
            lane=lanes[event.kind](event.lane),
            start_ns=event.start / PS,
            end_ns=event.end / PS,
        )
        for event in result.events
    )


def _kernels(program: Program) -> Iterator[tuple[str, Kernel]]:
    for place, node in kernels(program):
        yield f"{place.path}/{node.name}", node
