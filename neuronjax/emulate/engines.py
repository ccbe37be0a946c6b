"""The engines and DMA queues of a physical core, and the kernels that run on them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter as Tally
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Protocol

from neuronjax.emulate.clocks import Clock
from neuronjax.emulate.code import Step
from neuronjax.emulate.fabric import Member
from neuronjax.emulate.hooks import Hooks
from neuronjax.emulate.instruction_reader import Entry, Reader
from neuronjax.emulate.races import Event, Races
from neuronjax.emulate.semaphore import Counter
from neuronjax.emulate.streams import may_go, meets_on_engine, queue_of
from neuronjax.program.instruction import After

LOOKAHEAD = 256
"""Reading ahead stops at this many waiting instructions, as long as any of them can run."""

HOST = "host"


@dataclass(eq=False)
class Kernel:
    """A running kernel: one run of its code on one physical core."""

    reader: Reader
    #: Its place in the order of the program.
    number: int
    core: int
    member: Member
    semaphores: defaultdict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    #: Instructions that have been read and are not done, by the stream that they complete in.
    waiting: Tally[str] = field(default_factory=Tally)
    #: How often instructions are done, and the last event of each.
    done: Tally[Step] = field(default_factory=Tally)
    ends: dict[Step, Event] = field(default_factory=dict)
    #: The last event of each stream, and the numbers of all events.
    last: dict[str, Event] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether everything has executed."""
        return self.reader.is_done and not self.waiting

    def has_completed(self, stream: str, left: int) -> bool:
        """Whether a stream has at most its last `left` instructions of it left."""
        streams = self.reader.code.streams
        if streams is None:
            return self.reader.is_done and stream not in self.waiting
        steps = streams.get(stream, ())
        if len(steps) <= left:
            return True
        step, times = steps[len(steps) - 1 - left]
        return self.done[step] == times

    def end(self, stream: str, left: int) -> Event | None:
        """The last event of a stream but its last `left` instructions; None: there is none."""
        streams = self.reader.code.streams
        if streams is None:
            return self.last.get(stream)
        steps = streams.get(stream, ())
        return None if len(steps) <= left else self.ends[steps[len(steps) - 1 - left][0]]

    def note(self, entry: Entry) -> None:
        """Notes that an instruction is done."""
        assert entry.event is not None
        stream = entry.step.stream
        self.done[entry.step] += 1
        self.last[stream] = self.ends[entry.step] = entry.event
        self.events.append(entry.event.number)
        self.waiting[stream] -= 1
        if not self.waiting[stream]:
            del self.waiting[stream]


class Before(Protocol):
    """What is known of kernels before one, on all physical cores."""

    def is_complete(self, after: After, number: int) -> bool:
        """Whether all is complete that an instruction of a kernel comes after."""
        ...

    def seen(self, after: After, number: int) -> Clock:
        """What has been seen when all is complete that an instruction of a kernel comes after."""
        ...


@dataclass
class Core:
    """The engines and queues of a physical core; `prefix` begins their names."""

    hooks: Hooks
    prefix: str = ""
    #: Its kernels that are not done, in order.
    kernels: deque[Kernel] = field(default_factory=deque)
    engines: dict[str, deque[Entry]] = field(default_factory=dict)
    queues: dict[str, deque[Entry]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    #: By queue and the engine that feeds it: numbers of beginnings, and the transfers, in order.
    fed: dict[str, dict[str, tuple[list[int], list[Event]]]] = field(default_factory=dict)
    #: Instructions that have been read and are not done.
    waiting: int = 0

    @property
    def races(self) -> Races:
        return self.hooks.races

    def look_ahead(self) -> None:
        """Reads instructions into the streams of their engines."""
        while self.waiting < LOOKAHEAD and self.read_on():
            pass

    def read_on(self) -> bool:
        """Reads one more instruction into the stream of its engine; False if there is none."""
        for kernel in self.kernels:
            entry = kernel.reader.next()
            if entry is not None:
                entry.kernel = kernel
                engine = entry.step.instruction.engine
                name = self.prefix + (HOST if engine is None else engine.value)
                self.engines.setdefault(name, deque()).append(entry)
                kernel.waiting[entry.step.stream] += 1
                self.waiting += 1
                return True
            if not kernel.reader.is_done:
                return False
        return False

    def ready(self, before: Before) -> tuple[list[str], list[str]]:
        """Engines and queues that can advance."""
        self._post(before)
        engines = [n for n, entries in self.engines.items() if self._may_begin(entries, before)]
        queues = [name for name, entries in self.queues.items() if may_go(entries)]
        return engines, queues

    def advance(self, chosen: str, before: Before) -> None:
        """Lets a ready stream take one step."""
        if chosen in self.engines:
            self._begin(chosen, before)
        else:
            self._transfer(chosen)

    def _may_begin(self, entries: deque[Entry], before: Before) -> bool:
        if not entries:
            return False
        entry = entries[0]
        if meets_on_engine(entry.step):
            return entry.ticket is not None and entry.ticket.results is not None
        return self._has_waited(entry, before)

    def _has_waited(self, entry: Entry, before: Before) -> bool:
        """Whether registers, semaphores and kernels before are where it waits for them to be."""
        kernel = entry.kernel
        for name, count in entry.step.waits:
            if kernel.semaphores[name].value < count(entry.values):
                return False
        for after in entry.step.instruction.after:
            if not before.is_complete(after, kernel.number):
                return False
        return all(writer.is_done for writer in entry.writers.values())

    def _begin(self, engine: str, before: Before) -> None:
        """An engine executes its next instruction, or starts a transfer."""
        entry = self.engines[engine].popleft()
        if entry.ticket is not None:
            self._receive(entry, self.clocks[engine])
            return
        clock = self._clock_at(entry, engine, before)
        queue = queue_of(entry.step)
        if queue is None:
            self._execute(entry, engine, clock)
        else:
            entry.feeder, entry.fed = engine, self.races.count()
            clock.see(self.races.number(engine), entry.fed)
            entry.begun = clock.copy()
            queue = self.prefix + queue
            self.queues.setdefault(queue, deque()).append(entry)

    def _clock_at(self, entry: Entry, engine: str, before: Before) -> Clock:
        """The clock of an engine that begins an instruction, whose registers get their values."""
        clock = self.clocks.setdefault(engine, Clock())
        clock.join(entry.control)
        for name, count in entry.step.waits:
            clock.join(entry.kernel.semaphores[name].seen(count(entry.values)))
        for after in entry.step.instruction.after:
            clock.join(before.seen(after, entry.kernel.number))
        for place, writer in entry.writers.items():
            entry.values[place] = writer.values[place]
        self._check_registers(entry, engine, clock)
        return clock

    def _check_registers(self, entry: Entry, stream: str, clock: Clock) -> None:
        """Checks that register reads are ordered with the writes they depend on."""
        names = {place: name for name, place in entry.step.frame.registers.items()}
        for place, writer in entry.writers.items():
            if writer.event is not None:
                at = self.races.number(stream)
                reader = Event(0, stream, at, entry.step, entry.values, clock)
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
        clock.see(entry.event.at, entry.event.number)
        self.hooks.after(entry.step, entry.values)
        entry.is_done, entry.writers = True, {}
        self.waiting -= 1
        entry.kernel.note(entry)
        for signal in entry.step.instruction.signals:
            entry.kernel.semaphores[signal.semaphore.name].add(signal.by, clock)

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
        if exchange.is_between_cores:  # whose memory it sees
            entry.event.clock.join(ticket.seen)
            clock.join(ticket.seen)
        self.races.resume(entry.event)
        exchange.receive(entry.values, ticket.results)
        self._end(entry, clock)

    def _queue_clock(self, queue: str, entry: Entry) -> tuple[str, Clock]:
        """The stream of a transfer and its vector clock; see `races`."""
        stream = f"{queue} of {entry.feeder}"
        clock = self.clocks.setdefault(stream, Clock())
        clock.join(entry.begun)
        for feeder, (numbers, events) in self.fed.get(queue, {}).items():
            if feeder != entry.feeder:
                seen = bisect_right(numbers, entry.begun.last(self.races.number(feeder)))
                if seen:
                    clock.join(events[seen - 1].after())
        return stream, clock

    def _note(self, queue: str, entry: Entry) -> None:
        """Records a completed transfer for those that follow it in the queue."""
        assert entry.event is not None
        numbers, events = self.fed.setdefault(queue, {}).setdefault(entry.feeder, ([], []))
        numbers.append(entry.fed)
        events.append(entry.event)

    def _post(self, before: Before) -> None:
        """Posts this side of the exchanges that are next in their streams."""
        for engine, entries in self.engines.items():
            if entries and meets_on_engine(entries[0].step) and entries[0].ticket is None:
                entry = entries[0]
                if self._has_waited(entry, before):
                    self._post_side(entry, engine, self._clock_at(entry, engine, before))
        for queue, entries in self.queues.items():
            if entries and entries[0].step.exchange is not None and entries[0].ticket is None:
                stream, clock = self._queue_clock(queue, entries[0])
                self._post_side(entries[0], stream, clock)

    def _post_side(self, entry: Entry, stream: str, clock: Clock) -> None:
        entry.event = event = self.races.begin(stream, entry.step, entry.values, clock)
        self.hooks.before(entry.step, entry.values)
        entry.ticket = entry.kernel.member.post(entry.step, entry.values, event.after())

    def waiting_for_others(self) -> list[Entry]:
        """The instructions that have sent their side of an exchange."""
        streams = (*self.queues.values(), *self.engines.values())
        return [entries[0] for entries in streams if entries and entries[0].ticket is not None]

    def rest(self) -> None:
        """Forgets what kernels that are done have left."""
        self.engines.clear()
        self.queues.clear()
        self.clocks.clear()
        self.fed.clear()

    def heads(self, before: Before) -> list[str]:
        """What engines that cannot go on wait for."""
        return [
            f"{name}: {_describe(entries[0], before)}"
            for name, entries in sorted(self.engines.items())
            if entries
        ]


def _describe(entry: Entry, before: Before) -> str:
    step, kernel = entry.step, entry.kernel
    counts = [
        f"!{name} >= {count(entry.values)} (now {kernel.semaphores[name].value})"
        for name, count in step.waits
        if kernel.semaphores[name].value < count(entry.values)
    ]
    streams = [
        f"{after.stream} of earlier kernels"
        for after in step.instruction.after
        if not before.is_complete(after, kernel.number)
    ]
    waits = ", ".join((*counts, *streams))
    registers = [place for place, writer in entry.writers.items() if not writer.is_done]
    names = [name for name, place in step.frame.registers.items() if place in registers]
    missing = f" registers {', '.join(names)}" if names else ""
    at = step.frame.valuation(entry.values)
    return f"{step.path}{step.sources} at {at} waits for {waits}{missing}"
