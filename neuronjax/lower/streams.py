"""The streams of a kernel: which instructions are in order without any semaphore.

An engine runs its instructions in order. A DMA transfer or collective is started by its engine in
order, and its completion is known through its signal only; transfers of one engine on one queue,
and collectives of one stream, complete in order.

Functions of the loop variables about an instruction are rows: the base, then one coefficient per
loop, outermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronjax.machine.specs import Engine
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node

Row = tuple[int, ...]
"""Base and coefficients of a function of the loop variables about an instruction."""
UNKNOWN_TRIPS = 1 << 31
"""Trips of a loop that a register decides about."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Instructions that complete in order; `unit` is what one of them adds to its semaphore.

    What each DMA transfer adds: its 16 engines add one each ("NKI DMA overview").
    """

    name: str
    unit: int = 1


@dataclass(eq=False, slots=True)
class Turn:
    """A loop; every loop is a record of its own, whatever its variable is called."""

    variable: str
    trips: int
    #: Stream -> instructions of it that count, in one iteration.
    counts: dict[Stream, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Item:
    """An instruction in its stream; `position` is its place in the text of the kernel."""

    position: int
    instruction: Instruction
    loops: tuple[Turn, ...]
    engine: Stream
    stream: Stream
    #: Stream -> what counts of it before the item, while all loops are in their first iteration.
    before: dict[Stream, int] = field(default_factory=dict)

    def count_before(self, stream: Stream) -> Row:
        """Instructions of a stream that count and come before the item, in program order."""
        return (
            self.before.get(stream, 0),
            *(turn.counts.get(stream, 0) for turn in self.loops),
        )

    def count(self) -> Row:
        """Which of its stream's instructions it is, the first is 1."""
        base, *steps = self.count_before(self.stream)
        return (base + 1, *steps)


@dataclass(slots=True)
class Opened:
    """A loop about to begin, or ended."""

    turn: Turn
    is_end: bool = False


Event = Item | Opened


def engine_of(instruction: Instruction) -> Stream:
    """The stream that starts the instruction."""
    engine = instruction.engine
    return _ENGINES[engine] if engine is not None else _HOST


def stream_of(instruction: Instruction) -> Stream:
    """The stream that completes the instruction."""
    starter = engine_of(instruction)
    if isinstance(instruction, DmaInstruction):
        return Stream(f"{starter.name}_queue{instruction.queue}", 16)
    if isinstance(instruction, CollectiveInstruction):
        return Stream(f"{starter.name}_collectives{instruction.stream}")
    return starter


_ENGINES = {engine: Stream(engine.value) for engine in Engine}
_HOST = Stream("host")


def events(nodes: tuple[Node, ...]) -> list[Event]:
    """Instructions and ends of loops in the order of the text."""
    found: list[Event] = []
    _events(nodes, (), found)
    position = 0
    for event in found:
        if isinstance(event, Item):
            event.position = position
            position += 1
    return found


def _events(nodes: tuple[Node, ...], loops: tuple[Turn, ...], found: list[Event]) -> None:
    for node in nodes:
        if isinstance(node, Instruction):
            found.append(Item(0, node, loops, engine_of(node), stream_of(node)))
        else:
            assert isinstance(node, Loop)
            trips = node.most_trips if isinstance(node.trips, int) else None
            turn = Turn(node.variable, UNKNOWN_TRIPS if trips is None else trips)
            found.append(Opened(turn))
            _events(node.body, (*loops, turn), found)
            found.append(Opened(turn, is_end=True))


def count(order: Sequence[Event], counted: set[int]) -> None:
    """Sets what counts before each item and in each loop: the items at positions `counted`."""
    totals: dict[Stream, int] = {}
    starts: list[dict[Stream, int]] = []
    for event in order:
        if isinstance(event, Item):
            event.before = dict(totals)
            if event.position in counted:
                totals[event.stream] = totals.get(event.stream, 0) + 1
        elif not event.is_end:
            starts.append(dict(totals))
        else:
            start = starts.pop()
            turn = event.turn
            turn.counts = {
                stream: total - start.get(stream, 0)
                for stream, total in totals.items()
                if total != start.get(stream, 0)
            }
            totals = {
                stream: start.get(stream, 0) + turn.trips * turn.counts.get(stream, 0)
                for stream in totals
            }


# Rows


def least(row: Row, loops: Sequence[Turn]) -> int:
    """The least value while all loops run."""
    total = row[0]
    for factor, turn in zip(row[1:], loops, strict=True):
        if factor < 0:
            total += factor * (turn.trips - 1)
    return total


def exceeds(row: Row, other: Row, loops: Sequence[Turn]) -> bool:
    """Whether `row` is as great as `other` in every iteration."""
    total = row[0] - other[0]
    for index, turn in enumerate(loops, 1):
        step = row[index] - other[index]
        if step < 0:
            total += step * (turn.trips - 1)
    return total >= 0


def greatest(row: Row, loops: Sequence[Turn]) -> int:
    """The greatest value while all loops run."""
    return -least(tuple(-each for each in row), loops)


def composed(row: Row, inner: Sequence[Row], width: int) -> Row:
    """`row` of values that are rows themselves, each of `width` numbers."""
    total = [0] * width
    total[0] = row[0]
    for factor, values in zip(row[1:], inner, strict=True):
        if factor:
            for index, value in enumerate(values):
                total[index] += factor * value
    return tuple(total)
