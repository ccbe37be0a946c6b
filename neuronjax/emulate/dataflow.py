"""Execution in dataflow order: the engines and DMA queues of a kernel run concurrently.

* An engine executes its instructions in order, each once its waits hold. It only starts transfers;
  they execute on their queue, in order, and read, write and signal at their completion. Collectives
  do the same on their streams.
* Kernels are separated: all engines and queues drain, and semaphores start again at 0. The kernels
  of a split run concurrently, each with its own streams and semaphores.
* Registers are virtual. An instruction gets the value that the last write before it in program
  order leaves, and waits for that write. A loop or condition on a register begins on all engines
  once its value is known, and all of them have then seen the write.

A `Choice` decides which of the streams that can advance is next; see `stream_choice`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neuronjax.emulate.code import (
    CallCode,
    Code,
    IfCode,
    KernelCode,
    LoopCode,
    SplitCode,
    WhileCode,
)
from neuronjax.emulate.fabric import Fabric, Running
from neuronjax.emulate.frame import Values
from neuronjax.emulate.hooks import Hooks
from neuronjax.emulate.instruction_reader import Entry, Reader
from neuronjax.emulate.races import Clock, Event, Races, join
from neuronjax.emulate.semaphore import Counter
from neuronjax.emulate.streams import may_go, meets_on_engine, queue_of
from neuronjax.errors import DeadlockError

LOOKAHEAD = 256
"""Reading ahead stops at this many waiting instructions, as long as any of them can run."""

HOST = "host"


class Choice(Protocol):
    """Chooses the next of the streams that can advance."""

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """The name of the engine or queue that advances next."""
        ...


@dataclass
class Kernel:
    """A running kernel on one rank; `core` is the prefix of its streams' names."""

    reader: Reader
    fabric: Fabric
    rank: int
    hooks: Hooks
    core: str = ""
    #: Whether its exchanges are with other cores, whose memory it sees.
    meets_cores: bool = False
    engines: dict[str, deque[Entry]] = field(default_factory=dict)
    queues: dict[str, deque[Entry]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    semaphores: dict[str, Counter] = field(default_factory=dict)
    #: By queue and the engine that feeds it: numbers of beginnings, and the transfers, in order.
    fed: dict[str, dict[str, tuple[list[int], list[Event]]]] = field(default_factory=dict)
    #: Instructions that have been read and are not done.
    waiting: int = 0

    @property
    def races(self) -> Races:
        return self.hooks.races

    @property
    def is_done(self) -> bool:
        """Whether everything has executed."""
        return not self.waiting and self.reader.is_done

    def look_ahead(self) -> None:
        """Reads instructions into the streams of their engines."""
        while self.waiting < LOOKAHEAD and self.read_on():
            pass

    def read_on(self) -> bool:
        """Reads one more instruction into the stream of its engine; False if there is none."""
        entry = self.reader.next()
        if entry is None:
            return False
        engine = entry.step.instruction.engine
        name = self.core + (HOST if engine is None else engine.value)
        self.engines.setdefault(name, deque()).append(entry)
        self.waiting += 1
        return True

    def ready(self) -> tuple[list[str], list[str]]:
        """Engines and queues that can advance."""
        self._post()
        engines = [name for name, entries in self.engines.items() if self._may_begin(entries)]
        queues = [name for name, entries in self.queues.items() if may_go(entries)]
        return engines, queues

    def advance(self, chosen: str) -> None:
        """Lets a ready stream take one step."""
        if chosen in self.engines:
            self._begin(chosen)
        else:
            self._transfer(chosen)

    def _may_begin(self, entries: deque[Entry]) -> bool:
        if not entries:
            return False
        entry = entries[0]
        if meets_on_engine(entry.step):
            return entry.ticket is not None and entry.ticket.results is not None
        return self._has_waited(entry)

    def _has_waited(self, entry: Entry) -> bool:
        """Whether registers and semaphores are where it waits for them to be."""
        return all(writer.is_done for writer in entry.writers.values()) and all(
            self._semaphore(name).value >= count(entry.values) for name, count in entry.step.waits
        )

    def _semaphore(self, name: str) -> Counter:
        return self.semaphores.setdefault(name, Counter())

    def _begin(self, engine: str) -> None:
        """An engine executes its next instruction, or starts a transfer."""
        entry = self.engines[engine].popleft()
        if entry.ticket is not None:
            self._receive(entry, self.clocks[engine])
            return
        clock = self._clock_at(entry, engine)
        queue = queue_of(entry.step)
        if queue is None:
            self._execute(entry, engine, clock)
        else:
            entry.feeder, entry.fed = engine, self.races.count()
            clock[engine] = entry.fed
            entry.begun = dict(clock)
            queue = self.core + queue
            self.queues.setdefault(queue, deque()).append(entry)

    def _clock_at(self, entry: Entry, engine: str) -> Clock:
        """The clock of an engine that begins an instruction, whose registers get their values."""
        clock = self.clocks.setdefault(engine, {})
        join(clock, entry.control)
        for name, count in entry.step.waits:
            join(clock, self._semaphore(name).seen(count(entry.values)))
        for place, writer in entry.writers.items():
            entry.values[place] = writer.values[place]
        self._check_registers(entry, engine, clock)
        return clock

    def _check_registers(self, entry: Entry, stream: str, clock: Clock) -> None:
        """Checks that register reads are ordered with the writes they depend on."""
        names = {place: name for name, place in entry.step.frame.registers.items()}
        for place, writer in entry.writers.items():
            if writer.event is not None:
                reader = Event(0, stream, entry.step, entry.values, clock)
                self.hooks.register(reader, writer.event, names[place])

    def _execute(self, entry: Entry, stream: str, clock: Clock) -> None:
        entry.event = self.races.begin(stream, entry.step, entry.values, clock)
        self.hooks.before(entry.step, entry.values)
        run = entry.step.run
        assert run is not None
        run(entry.values)
        self._end(entry, clock)

    def _end(self, entry: Entry, clock: Clock) -> None:
        assert entry.event is not None
        clock[entry.event.stream] = entry.event.number
        self.hooks.after(entry.step, entry.values)
        entry.is_done, entry.writers = True, {}
        self.waiting -= 1
        for signal in entry.step.instruction.signals:
            self._semaphore(signal.semaphore.name).add(signal.by, clock)

    def _transfer(self, queue: str) -> None:
        """A queue executes its next transfer."""
        entry = self.queues[queue].popleft()
        stream, clock = self._queue_clock(queue, entry)
        if entry.ticket is None:
            self._execute(entry, stream, clock)
            self._note(queue, entry)
            return
        self._receive(entry, clock)
        self._note(queue, entry)

    def _receive(self, entry: Entry, clock: Clock) -> None:
        """The end of an exchange that has taken place."""
        exchange, ticket = entry.step.exchange, entry.ticket
        assert entry.event is not None
        assert exchange is not None
        assert ticket is not None
        assert ticket.results is not None
        if self.meets_cores:
            join(entry.event.clock, ticket.seen)
            join(clock, ticket.seen)
        self.races.resume(entry.event)
        exchange.receive(entry.values, ticket.results)
        self._end(entry, clock)

    def _queue_clock(self, queue: str, entry: Entry) -> tuple[str, Clock]:
        """The stream of a transfer and its vector clock; see `races`."""
        stream = f"{queue} of {entry.feeder}"
        clock = self.clocks.setdefault(stream, {})
        join(clock, entry.begun)
        for feeder, (numbers, events) in self.fed.get(queue, {}).items():
            if feeder != entry.feeder:
                seen = bisect_right(numbers, entry.begun.get(feeder, 0))
                if seen:
                    event = events[seen - 1]
                    join(clock, event.clock | {event.stream: event.number})
        return stream, clock

    def _note(self, queue: str, entry: Entry) -> None:
        """Records a completed transfer for those that follow it in the queue."""
        assert entry.event is not None
        numbers, events = self.fed.setdefault(queue, {}).setdefault(entry.feeder, ([], []))
        numbers.append(entry.fed)
        events.append(entry.event)

    def _post(self) -> None:
        """Posts this side of the exchanges that are next in their streams."""
        for engine, entries in self.engines.items():
            if entries and meets_on_engine(entries[0].step) and entries[0].ticket is None:
                entry = entries[0]
                if self._has_waited(entry):
                    self._post_side(entry, engine, self._clock_at(entry, engine))
        for queue, entries in self.queues.items():
            if entries and entries[0].step.exchange is not None and entries[0].ticket is None:
                stream, clock = self._queue_clock(queue, entries[0])
                self._post_side(entries[0], stream, clock)

    def _post_side(self, entry: Entry, stream: str, clock: Clock) -> None:
        entry.event = event = self.races.begin(stream, entry.step, entry.values, clock)
        self.hooks.before(entry.step, entry.values)
        seen = {**event.clock, stream: event.number}
        entry.ticket = self.fabric.post(self.rank, entry.step, entry.values, seen)

    def waits_for_others(self) -> bool:
        """Whether it has sent its side of an exchange."""
        streams = (*self.queues.values(), *self.engines.values())
        return any(entries and entries[0].ticket is not None for entries in streams)

    def deadlock(self) -> None:
        """Raises ``DeadlockError``: all streams wait, and none of them for other ranks."""
        heads = [
            f"{name}: {_describe(entries[0], self)}"
            for name, entries in sorted(self.engines.items())
            if entries
        ]
        raise DeadlockError(
            f"{self.fabric.member} {self.rank}: {self.reader.code.path} cannot continue. "
            f"{'; '.join(heads)}. Signal what is waited for from an"
            " instruction that does not wait for it."
        )


@dataclass(frozen=True, slots=True)
class ConcurrentKernels:
    """One or more kernels that run concurrently."""

    kernels: Sequence[Kernel]
    choice: Choice

    def run(self) -> Running:
        """Executes the kernels; yields while they wait for other ranks.

        Raises:
          DeadlockError: all streams wait, and none of them for other ranks.
          CollectiveError: a core waits for another one that never comes.
        """
        while True:
            for kernel in self.kernels:
                kernel.look_ahead()
            if self._advance() or any(kernel.read_on() for kernel in self.kernels):
                continue
            stuck = [kernel for kernel in self.kernels if not kernel.is_done]
            waiting = [kernel for kernel in stuck if kernel.waits_for_others()]
            if waiting and waiting[0].meets_cores:
                waiting[0].fabric.fail({kernel.rank for kernel in stuck})
            if waiting:
                yield
                continue
            if not stuck:
                break
            stuck[0].deadlock()
        for kernel in self.kernels:
            kernel.reader.finish()
            kernel.races.synchronise()

    def _advance(self) -> bool:
        """Lets one stream take a step; False if none can."""
        engines: list[str] = []
        queues: list[str] = []
        owners: dict[str, Kernel] = {}
        for kernel in self.kernels:
            own_engines, own_queues = kernel.ready()
            engines += own_engines
            queues += own_queues
            owners.update(dict.fromkeys((*own_engines, *own_queues), kernel))
        if not owners:
            return False
        chosen = self.choice.next(engines, queues)
        owners[chosen].advance(chosen)
        return True


def _describe(entry: Entry, kernel: Kernel) -> str:
    step = entry.step
    waits = ", ".join(
        f"!{name} >= {count(entry.values)}, which is {kernel._semaphore(name).value}"
        for name, count in step.waits
        if kernel._semaphore(name).value < count(entry.values)
    )
    registers = [place for place, writer in entry.writers.items() if not writer.is_done]
    names = [name for name, place in step.frame.registers.items() if place in registers]
    missing = f" registers {', '.join(names)}" if names else ""
    at = step.frame.valuation(entry.values)
    return f"{step.path}{step.sources} at {at} waits for {waits}{missing}"


@dataclass(frozen=True, slots=True)
class DataflowRunner:
    """Runs a program kernel by kernel."""

    fabric: Fabric
    rank: int
    choice: Choice
    hooks: Hooks

    def running(self, codes: Sequence[Code], values: Values) -> Running:
        """Executes code; yields while it waits for other ranks."""
        for code in codes:
            yield from _RUNNERS[type(code)](self, code, values)

    def _loop(self, loop: LoopCode, values: Values) -> Running:
        count = loop.trips(values)
        for index in range(count):
            values[loop.place], values[loop.place + 1] = index, count
            yield from self.running(loop.body, values)

    def _while(self, node: WhileCode, values: Values) -> Running:
        while True:
            yield from self.running(node.condition, values)
            if not values[node.register]:
                return
            yield from self.running(node.body, values)

    def _if(self, node: IfCode, values: Values) -> Running:
        yield from self.running(node.then if values[node.register] else node.otherwise, values)

    def _call(self, node: CallCode, values: Values) -> Running:
        yield from self.running(node.body, values)

    def _kernel(self, code: KernelCode, values: Values) -> Running:
        yield from self._concurrently((code,), values)

    def _split(self, node: SplitCode, values: Values) -> Running:
        yield from self._concurrently(node.kernels, values)

    def _concurrently(self, codes: Sequence[KernelCode], values: Values) -> Running:
        kernels = []
        cores = Fabric(len(codes), member="core") if len(codes) > 1 else None
        for core, code in enumerate(codes):
            self.hooks.begin(code)
            kernels.append(
                Kernel(
                    Reader(code, values),
                    cores or self.fabric,
                    core if cores else self.rank,
                    self.hooks,
                    f"core {core} " if core else "",
                    meets_cores=cores is not None,
                )
            )
        yield from ConcurrentKernels(kernels, self.choice).run()


_RUNNERS: Mapping[type, Callable[..., Running]] = {
    LoopCode: DataflowRunner._loop,
    WhileCode: DataflowRunner._while,
    IfCode: DataflowRunner._if,
    CallCode: DataflowRunner._call,
    KernelCode: DataflowRunner._kernel,
    SplitCode: DataflowRunner._split,
}
