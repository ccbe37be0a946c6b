"""Races: two unordered accesses to the same bytes, at least one of them a write.

Every engine is a stream of events, and so are the transfers that one engine feeds to a DMA queue or
a stream of collectives; events are numbered in the order in which they happen to execute. The
vector clock of an event holds, for every stream, the last event that it has seen: through the order
of its own stream, through semaphores, through waits for streams of kernels before, and where all
kernels are over. A queue keeps the order in which transfers are started, so a transfer has also
seen those of other engines on its queue whose start its own engine had seen. An access races with
events beyond the clock of its own that touched the same bytes (`accesses`).

A wait has seen the signals that raised the semaphore to its count, in the order of their arrival.
If several streams signal one semaphore, that order is a matter of chance, so another seed may find
more races. An instruction of an engine is taken to end before the next one begins.

Physical cores beside each other may write the same bytes, as programs of a grid do that each
compute all of a result: a write that leaves bytes as they are is no race with what another core
does there, and who has seen one of two such writes has seen the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from neuronjax.emulate.accesses import Log, Touch
from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.clocks import Clock
from neuronjax.emulate.code import Step
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.window import Array, Window


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An executing instruction and its vector clock; `at` is the number of its stream."""

    number: int
    stream: str
    at: int
    step: Step
    values: Values
    clock: Clock

    def after(self) -> Clock:
        """What has been seen when it is over."""
        clock = self.clock.copy()
        clock.see(self.at, self.number)
        return clock

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value}" for name, value in self._valuation().items())
        return f"{self.step.path}{f' at {at}' if at else ''}{self.step.sources} on {self.stream}"

    def _valuation(self) -> dict[str, int]:
        return self.step.frame.valuation(self.values)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A write of `event` to what another core touches unordered: a race if bytes change."""

    event: Event
    touch: Touch
    before: Array
    #: Events of the other core, whether they write, and what they touch.
    others: list[tuple[int, bool, Touch]]
    what: str


@dataclass
class Races:
    """Events and marks of one rank. `now` is the executing event."""

    reporter: Reporter
    now: Event | None = None
    #: What every stream has seen since the last barrier.
    barrier: int = 0
    _count: int = 0
    _events: dict[int, Event] = field(default_factory=dict)
    _streams: dict[str, int] = field(default_factory=dict)
    _logs: dict[Storage, Log] = field(default_factory=dict)
    #: Writes of the event that is executing.
    _doubts: list[Doubt] = field(default_factory=list)
    #: A write -> writes of the same bytes by another core.
    _agreed: dict[int, set[int]] = field(default_factory=dict)
    #: By number of a stream: the last event of it that `now` has seen.
    _seen: Array | None = None

    def begin(self, stream: str, step: Step, values: Values, clock: Clock) -> Event:
        """Starts a new event of a stream, which has seen `clock`."""
        self._count += 1
        self.resume(Event(self._count, stream, self.number(stream), step, values, clock.copy()))
        assert self.now is not None
        self._events[self._count] = self.now
        return self.now

    def number(self, stream: str) -> int:
        """The number of a stream."""
        return self._streams.setdefault(stream, len(self._streams))

    def count(self) -> int:
        """The number of an event without accesses, such as the start of a transfer."""
        self._count += 1
        return self._count

    def resume(self, event: Event) -> None:
        """Resumes an interrupted event."""
        self.now, self._seen = event, None

    def synchronise(self) -> None:
        """A barrier: all streams have seen all events."""
        self.barrier = self._count
        self._events.clear()
        self._agreed.clear()
        for log in self._logs.values():
            log.clear()

    def forget(self, numbers: list[int]) -> None:
        """Lets go of events that every stream has seen."""
        for number in numbers:
            self._events.pop(number, None)

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Checks a read against unordered writes."""
        self._access(window, values, where, "reads what", writes=False)

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        """Checks a write against unordered accesses."""
        self._access(window, values, where, "overwrites what", writes=True)

    def _access(
        self, window: Window, values: Values, where: Array | None, does: str, *, writes: bool
    ) -> None:
        event = self.now
        assert event is not None
        log = self._logs.setdefault(window.storage, Log())
        touch = Touch(window, window.start(values), where)
        what, seen = window.access.buffer.name, self._seen_by(event)
        doubtful = []
        for other, is_write, place in log.unseen(touch, event.at, seen, writes=writes):
            if _core(self._events[other].stream) == _core(event.stream):
                self._report(event, self._events[other], does, is_write, what)
            elif writes:
                doubtful.append((other, is_write, place))
            elif not self._has_seen_any(self._agreed.get(other, ())):
                self._report(event, self._events[other], does, is_write, what)
        if doubtful:
            self._doubts.append(Doubt(event, touch, touch.contents().copy(), doubtful, what))
        log.add(touch, event.at, event.number, writes=writes, keep=self._events.__contains__)

    def settle(self) -> None:
        """Looks at what an instruction has written, which is there now."""
        for doubt in self._doubts:
            changed = doubt.before != doubt.touch.contents()
            for other, is_write, place in doubt.others:
                if doubt.touch.has_some(changed, place):
                    self._report(
                        doubt.event, self._events[other], "overwrites what", is_write, doubt.what
                    )
                elif is_write:
                    self._agreed.setdefault(other, set()).add(doubt.event.number)
                    self._agreed.setdefault(doubt.event.number, set()).add(other)
        self._doubts.clear()

    def _has_seen_any(self, numbers: Iterable[int]) -> bool:
        """Whether what is executing comes after one of some events."""
        assert self.now is not None
        seen = self._seen_by(self.now)
        return any(
            event.at == self.now.at or number <= seen[event.at]
            for number in numbers
            if (event := self._events.get(number)) is not None
        )

    def _seen_by(self, event: Event) -> Array:
        """The last event of each stream, by its number, that an event has seen."""
        if self._seen is None or len(self._seen) < len(self._streams):
            self._seen = event.clock.since(self.barrier, len(self._streams))
        return self._seen

    def register(self, event: Event, writer: Event, name: str) -> None:
        """Checks a read of a register that another event has written."""
        seen = max(event.clock.last(writer.at), self.barrier)
        if writer.at != event.at and writer.number > seen:
            self._report(event, writer, "reads what", True, f"register ${name}")

    def _report(self, event: Event, other: Event, does: str, is_write: bool, what: str) -> None:
        other_does = "writes" if is_write else "reads"
        message = (
            f"{event} {does} {other} {other_does}, {what}, and nothing orders the two. Make one"
            " wait for a signal from the other, or give them different memory."
        )
        paths = tuple(sorted((event.step.path, other.step.path)))
        self.reporter.report(Finding(Kind.RACE, self.reporter.rank, paths, message))


def _core(stream: str) -> str:
    """The physical core that a stream belongs to."""
    return stream.split()[1] if stream.startswith("core ") else "0"
