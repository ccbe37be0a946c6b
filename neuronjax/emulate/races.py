"""Races: two unordered accesses to the same bytes, at least one of them a write.

Every engine is a stream of events, and so are the transfers that one engine feeds to a DMA queue or
a stream of collectives; events are numbered in the order in which they happen to execute. The
vector clock of an event holds, for every stream, the last event that it has seen: through the order
of its own stream, through semaphores, through waits for streams of kernels before, and where all
kernels are over. A queue keeps the order in which transfers are started, so a transfer has also
seen those of other engines on its queue whose start its own engine had seen. Every stream has two
arrays with an item per granule of memory: the last event that wrote there and the last that read
there. An access races with the events in these arrays that lie beyond its clock.

A wait has seen the signals that raised the semaphore to its count, in the order of their arrival.
If several streams signal one semaphore, that order is a matter of chance, so another seed may find
more races. An instruction of an engine is taken to end before the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.code import Step
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.window import Array, Window

Clock = dict[str, int]
"""Stream -> the last event of it that has been seen."""


def join(clock: Clock, other: Clock) -> None:
    """Merges `other` into `clock`, in place."""
    for stream, event in other.items():
        if event > clock.get(stream, 0):
            clock[stream] = event


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An executing instruction and its vector clock."""

    number: int
    stream: str
    step: Step
    values: Values
    clock: Clock

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value}" for name, value in self._valuation().items())
        return f"{self.step.path}{f' at {at}' if at else ''}{self.step.sources} on {self.stream}"

    def _valuation(self) -> dict[str, int]:
        return self.step.frame.valuation(self.values)


@dataclass(slots=True)
class _Marks:
    """The last events of a stream by granule of a storage, and the latest of them."""

    events: Array
    latest: int = 0


@dataclass
class Races:
    """Events and marks of one rank. `now` is the executing event."""

    reporter: Reporter
    now: Event | None = None
    #: What every stream has seen since the last barrier.
    barrier: int = 0
    _count: int = 0
    _events: dict[int, Event] = field(default_factory=dict)
    _written: dict[Storage, dict[str, _Marks]] = field(default_factory=dict)
    _read: dict[Storage, dict[str, _Marks]] = field(default_factory=dict)

    def begin(self, stream: str, step: Step, values: Values, clock: Clock) -> Event:
        """Starts a new event of a stream, which has seen `clock`."""
        self._count += 1
        self.now = Event(self._count, stream, step, values, dict(clock))
        self._events[self._count] = self.now
        return self.now

    def count(self) -> int:
        """The number of an event without accesses, such as the start of a transfer."""
        self._count += 1
        return self._count

    def resume(self, event: Event) -> None:
        """Resumes an interrupted event."""
        self.now = event

    def synchronise(self) -> None:
        """A barrier: all streams have seen all events."""
        self.barrier = self._count
        self._events.clear()

    def forget(self, numbers: list[int]) -> None:
        """Lets go of events that every stream has seen."""
        for number in numbers:
            self._events.pop(number, None)

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Checks a read against unordered writes."""
        event = self._event()
        self._compare(event, window, values, where, self._written, "reads what", "writes")
        self._mark(event, window, values, where, self._read)

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        """Checks a write against unordered accesses."""
        event = self._event()
        self._compare(event, window, values, where, self._read, "overwrites what", "reads")
        self._compare(event, window, values, where, self._written, "overwrites what", "writes")
        self._mark(event, window, values, where, self._written)

    def register(self, event: Event, writer: Event, name: str) -> None:
        """Checks a read of a register that another event has written."""
        if writer.stream != event.stream and writer.number > self._seen(event, writer.stream):
            self._report(event, writer, "reads what", "writes", f"register ${name}")

    def _event(self) -> Event:
        assert self.now is not None
        return self.now

    def _seen(self, event: Event, stream: str) -> int:
        return max(event.clock.get(stream, 0), self.barrier)

    def _compare(
        self,
        event: Event,
        window: Window,
        values: Values,
        where: Array | None,
        marks: dict[Storage, dict[str, _Marks]],
        does: str,
        other_does: str,
    ) -> None:
        for stream, theirs in marks.get(window.storage, {}).items():
            seen = self._seen(event, stream)
            if stream == event.stream or theirs.latest <= seen:
                continue
            events = window.granules(theirs.events, values)
            last = int((events if where is None else events[where]).max(initial=0))
            if last > seen:
                what = window.access.buffer.name
                self._report(event, self._events[last], does, other_does, what)

    def _mark(
        self,
        event: Event,
        window: Window,
        values: Values,
        where: Array | None,
        marks: dict[Storage, dict[str, _Marks]],
    ) -> None:
        streams = marks.setdefault(window.storage, {})
        mine = streams.get(event.stream)
        if mine is None:
            storage = window.storage
            items = storage.rows * storage.width // storage.granule
            mine = streams[event.stream] = _Marks(np.zeros(items, np.int32))
        window.granules(mine.events, values)[... if where is None else where] = event.number
        mine.latest = event.number

    def _report(self, event: Event, other: Event, does: str, other_does: str, what: str) -> None:
        message = (
            f"{event} {does} {other} {other_does}, {what}, and nothing orders the two. Let one wait"
            " for a signal of the other, or give them different memory."
        )
        paths = tuple(sorted((event.step.path, other.step.path)))
        self.reporter.report(Finding(Kind.RACE, self.reporter.rank, paths, message))
