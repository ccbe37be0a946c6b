"""Races: two accesses to the same bytes, one of them a write, that nothing puts in order.

Every engine is a stream of events, and so is what one engine feeds to a DMA queue or a stream of
collectives; they are numbered in the order in which they happen to execute. A vector clock says for
each stream up to which event another one has seen it: through the order of its own stream, through
semaphores, and through barriers between kernels. A queue keeps the order in which transfers are
begun, so a transfer has also seen what other engines fed to its queue, as far as its own engine had
seen them begin it. For each stream there are two arrays with an item per granule of memory: the
last event that wrote and the last that read there. An access races with what these hold beyond its
clock.

What a wait has seen are the signals that made the semaphore reach the count, in the order in which
they came: with signals of several streams on one semaphore that is a matter of luck, so another
seed may find more. Instructions of one engine are taken to end before the next one begins.
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
"""Stream -> its last event that has been seen."""


def join(clock: Clock, other: Clock) -> None:
    """`clock` sees what `other` has seen."""
    for stream, event in other.items():
        if event > clock.get(stream, 0):
            clock[stream] = event


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An instruction that executes, with what it has seen."""

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
    """The last events of a stream in a storage, and the last one of them all."""

    events: Array
    latest: int = 0


@dataclass
class Races:
    """Events and marks of one rank. `now` is the event that executes."""

    reporter: Reporter
    now: Event | None = None
    #: What every stream has seen since the last barrier.
    barrier: int = 0
    _count: int = 0
    _events: dict[int, Event] = field(default_factory=dict)
    _written: dict[Storage, dict[str, _Marks]] = field(default_factory=dict)
    _read: dict[Storage, dict[str, _Marks]] = field(default_factory=dict)

    def begin(self, stream: str, step: Step, values: Values, clock: Clock) -> Event:
        """A new event of a stream, which has seen `clock`."""
        self._count += 1
        self.now = Event(self._count, stream, step, values, dict(clock))
        self._events[self._count] = self.now
        return self.now

    def count(self) -> int:
        """The number of an event that accesses nothing: the beginning of a transfer."""
        self._count += 1
        return self._count

    def resume(self, event: Event) -> None:
        """Goes on with an event that was interrupted."""
        self.now = event

    def synchronise(self) -> None:
        """A barrier: all streams have seen everything."""
        self.barrier = self._count
        self._events.clear()

    def reads(self, window: Window, values: Values, where: Array | None) -> None:
        """Looks for unordered writes of what is read."""
        event = self._event()
        self._compare(event, window, values, where, self._written, "reads what", "writes")
        self._mark(event, window, values, where, self._read)

    def writes(self, window: Window, values: Values, where: Array | None) -> None:
        """Looks for unordered accesses to what is written."""
        event = self._event()
        self._compare(event, window, values, where, self._read, "overwrites what", "reads")
        self._compare(event, window, values, where, self._written, "overwrites what", "writes")
        self._mark(event, window, values, where, self._written)

    def register(self, event: Event, writer: Event, name: str) -> None:
        """Looks at a read of a register that another event has written."""
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
        for stream, found in marks.get(window.storage, {}).items():
            seen = self._seen(event, stream)
            if stream == event.stream or found.latest <= seen:
                continue
            here = window.granules(found.events, values)
            last = int((here if where is None else here[where]).max(initial=0))
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
