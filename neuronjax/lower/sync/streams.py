"""The streams of a kernel: which instructions are in order without any semaphore.

An engine runs its instructions in order. A DMA transfer or collective is started by its engine in
order, and its completion is known through its signal only; transfers of one engine on one queue,
and collectives of one stream, complete in order.

Functions of the loop variables about an instruction are rows: the base, then one coefficient per
loop, outermost first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node
from neuronjax.program.streams import completing, starting

Row = tuple[int, ...]
"""Base and coefficients of a function of the loop variables about an instruction."""
OUTSIDE = 0
"""The number of the loop for instructions in no loop."""
UNKNOWN_TRIPS = 1 << 31
"""Trips of a loop that a register decides about."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Instructions that complete in order; `unit` is what one of them adds to a semaphore.

    A DMA transfer adds 16: its engines add one each ("NKI DMA overview"). Each stream of a kernel
    is one record.
    """

    name: str
    unit: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """What counts a stream's instructions: in one of the kernel's outermost loops, or in none.

    A counter that loops began at 0 makes early iterations wait for 0 or less, and so not for what
    comes before the loop.
    """

    stream: Stream
    #: Number of the loop, or `OUTSIDE`.
    loop: int
    #: Whether a register may decide that the loop, or one within it, has no trip.
    may_be_empty: bool = False


@dataclass(eq=False, slots=True)
class Turn:
    """A loop; every loop is a record of its own, whatever its variable is called."""

    variable: str
    trips: int
    #: Counter -> what one iteration adds to it.
    counts: dict[Counter, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Item:
    """An instruction in its stream; `position` is its place in the text of the kernel."""

    position: int
    instruction: Instruction
    loops: tuple[Turn, ...]
    engine: Stream
    stream: Stream
    counter: Counter
    #: What counters of its engine and stream have come to before it, while all loops are in their
    #: first iteration; of the loops before only the last.
    before: dict[Counter, int] = field(default_factory=dict)
    #: What its counter comes to with it, in every iteration.
    count: Row = ()

    def count_before(self, counter: Counter) -> Row:
        """What a counter has come to before the item, in program order."""
        return (
            self.before.get(counter, 0),
            *(turn.counts.get(counter, 0) for turn in self.loops),
        )

    def done_before(self) -> Iterator[tuple[Counter, tuple[Row, ...]]]:
        """What counters have come to, of streams in which all before is done when the item is.

        Of a stream's loops that are over, only the last one's counter.
        """
        known = {**self.before, **(self.loops[0].counts if self.loops else {})}
        for counter in known:
            if counter.stream is self.engine or counter.stream is self.stream:
                yield counter, (self.count_before(counter),)


@dataclass(slots=True)
class Opened:
    """A loop about to begin, or ended."""

    turn: Turn
    is_end: bool = False


Event = Item | Opened


class _Streams(dict[str, Stream]):
    """The streams of a kernel by name."""

    def starting(self, instruction: Instruction) -> Stream:
        """The stream that starts the instruction."""
        return self._named(starting(instruction), 1)

    def completing(self, instruction: Instruction) -> Stream:
        """The stream that completes the instruction."""
        unit = 16 if isinstance(instruction, DmaInstruction) else 1
        return self._named(completing(instruction), unit)

    def _named(self, name: str, unit: int) -> Stream:
        return self.get(name) or self.setdefault(name, Stream(name, unit))


def events(nodes: tuple[Node, ...]) -> list[Event]:
    """Instructions and ends of loops in the order of the text."""
    events: list[Event] = []
    _events(nodes, (), events, _Streams())
    counters: dict[tuple[Stream, Turn | None], Counter] = {}
    numbers: dict[Turn | None, int] = {None: OUTSIDE}
    open_loops = {
        event.loops[0]
        for event in events
        if isinstance(event, Item) and any(turn.trips == UNKNOWN_TRIPS for turn in event.loops)
    }
    position = 0
    for event in events:
        if isinstance(event, Item):
            event.position = position
            position += 1
            outermost = event.loops[0] if event.loops else None
            loop = numbers.setdefault(outermost, len(numbers))
            new = Counter(event.stream, loop, may_be_empty=outermost in open_loops)
            event.counter = counters.setdefault((event.stream, outermost), new)
    return events


def _events(
    nodes: tuple[Node, ...], loops: tuple[Turn, ...], events: list[Event], streams: _Streams
) -> None:
    for node in nodes:
        if isinstance(node, Instruction):
            engine, stream = streams.starting(node), streams.completing(node)
            events.append(Item(0, node, loops, engine, stream, Counter(stream, OUTSIDE)))
        else:
            assert isinstance(node, Loop)
            trips = node.most_trips if isinstance(node.trips, int) else None
            turn = Turn(node.variable, UNKNOWN_TRIPS if trips is None else trips)
            events.append(Opened(turn))
            _events(node.body, (*loops, turn), events, streams)
            events.append(Opened(turn, is_end=True))


def count(order: Sequence[Event], counted: set[int]) -> None:
    """Sets what counts before each item, and in each loop: the items at positions `counted`."""
    totals: dict[Counter, int] = {}
    starts: list[dict[Counter, int]] = []
    for event in order:
        if isinstance(event, Item):
            streams = (event.engine, event.stream)
            event.before = {c: total for c, total in totals.items() if c.stream in streams}
            if event.position in counted:
                if event.counter not in totals:
                    leave_out_older(totals, event.counter)
                totals[event.counter] = totals.get(event.counter, 0) + 1
        elif not event.is_end:
            starts.append(dict(totals))
        else:
            start = starts.pop()
            turn = event.turn
            turn.counts = {
                counter: total - start.get(counter, 0)
                for counter, total in totals.items()
                if total != start.get(counter, 0)
            }
            totals = {
                counter: start.get(counter, 0) + turn.trips * turn.counts.get(counter, 0)
                for counter in totals
            }
    for event in order:
        if isinstance(event, Item):
            base, *steps = event.count_before(event.counter)
            event.count = (base + 1, *steps)


def leave_out_older(values: dict[Counter, Any], counter: Counter) -> None:
    """Deletes what there is for loops of the counter's stream before its own, which are over when
    that has begun."""
    stream, loop = counter.stream, counter.loop
    if counter.may_be_empty:
        return
    for older in [other for other in values if OUTSIDE < other.loop < loop]:
        if older.stream is stream:
            del values[older]


# Rows


def exceeds(row: Row, other: Row, loops: Sequence[Turn]) -> bool:
    """Whether `row` is as great as `other` in every iteration."""
    total = row[0] - other[0]
    if not loops:
        return total >= 0
    for index, turn in enumerate(loops, 1):
        step = row[index] - other[index]
        if step < 0:
            total += step * (turn.trips - 1)
    return total >= 0


def least(row: Row, loops: Sequence[Turn]) -> int:
    """The least value while all loops run."""
    total = row[0]
    for index, turn in enumerate(loops, 1):
        if row[index] < 0:
            total += row[index] * (turn.trips - 1)
    return total


def greatest(row: Row, loops: Sequence[Turn]) -> int:
    """The greatest value while all loops run."""
    total = row[0]
    for index, turn in enumerate(loops, 1):
        if row[index] > 0:
            total += row[index] * (turn.trips - 1)
    return total


def composed(row: Row, inner: Sequence[Row], width: int) -> Row:
    """`row` of values that are rows themselves, each of `width` numbers."""
    total = [0] * width
    total[0] = row[0]
    for factor, values in zip(row[1:], inner, strict=True):
        if factor:
            for index, value in enumerate(values):
                total[index] += factor * value
    return tuple(total)
