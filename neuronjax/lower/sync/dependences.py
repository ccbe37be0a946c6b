"""What each instruction of a kernel has to wait for: pairs whose accesses conflict."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from neuronjax.lower.sync.distance import Source, bound, levels, nearest, newest
from neuronjax.lower.sync.knowledge import Facts, has
from neuronjax.lower.sync.patterns import Pattern, pattern
from neuronjax.lower.sync.streams import Counter, Item, Row, Stream, Turn, exceeds, greatest
from neuronjax.program.operand import Access, Buffer, Register

Place = tuple[str, str]
"""What stands for a buffer or register."""
Overlap = Callable[[Buffer, Buffer], bool | None]
"""Whether two different buffers share memory: None if they may, nobody knows where."""
End = tuple[int, int, int, int, "Line"]
"""A line and its number, with the index of the use to look at and of the last one; the newest use
sorts first."""


@dataclass(slots=True)
class Line:
    """Uses of some memory by instructions of one counter in the same loops, all reads or all
    writes, in program order.

    Of two before a consumer, the later one has counted more: if what is done is enough for it, it
    is for all before.
    """

    engine: Stream
    stream: Stream
    loops: tuple[Turn, ...]
    is_write: bool
    #: Whether nobody knows if this is the memory in question.
    is_vague: bool
    users: list[tuple[Item, Pattern]] = field(default_factory=list)


@dataclass(slots=True)
class Uses:
    """All uses of the memory that items touch, by buffer and register."""

    by_item: dict[int, list[tuple[Place, Pattern]]] = field(default_factory=dict)
    #: Place -> uses of it, and of places that share memory with it.
    lines: dict[Place, list[Line]] = field(default_factory=dict)


def uses_of(items: Sequence[Item], overlap: Overlap) -> Uses:
    """The uses of all items."""
    uses = Uses()
    buffers: dict[Place, Buffer] = {}
    by_place: dict[Place, list[tuple[Item, Pattern]]] = {}
    for item in items:
        own = uses.by_item[item.position] = []
        for operand, is_write in _operands(item):
            if isinstance(operand, Access):
                place = (operand.buffer.memory.value, operand.buffer.name)
                buffers[place] = operand.buffer
            else:
                place = ("register", operand.name)
            accessed = pattern(operand, is_write, item.loops)
            own.append((place, accessed))
            by_place.setdefault(place, []).append((item, accessed))
    shared = {place: [(place, False)] for place in by_place}
    for place, other in _near(buffers):
        answer = overlap(buffers[place], buffers[other])
        if answer is not False:
            shared[place].append((other, answer is None))
            shared[other].append((place, answer is None))
    lines: dict[frozenset[tuple[Place, bool]], list[Line]] = {}
    for place, near in shared.items():
        key = frozenset(near)  # tiles at one place share with the same ones
        if key not in lines:
            lines[key] = _lines((by_place[other], is_vague) for other, is_vague in sorted(near))
        uses.lines[place] = lines[key]
    return uses


def _lines(uses: Iterable[tuple[Sequence[tuple[Item, Pattern]], bool]]) -> list[Line]:
    """Uses, and whether each is vague, as lines."""
    lines: dict[Hashable, Line] = {}
    for users, is_vague in uses:
        for item, accessed in users:
            key = (item.counter, item.engine, item.loops, accessed.is_write, is_vague)
            line = lines.get(key)
            if line is None:
                line = lines[key] = Line(
                    item.engine, item.stream, item.loops, accessed.is_write, is_vague
                )
            line.users.append((item, accessed))
    for line in lines.values():
        line.users.sort(key=_position)
    return list(lines.values())


def _near(buffers: Mapping[Place, Buffer]) -> Iterator[tuple[Place, Place]]:
    """Pairs of buffers of one memory, but none that are known to be apart on chip."""
    open_ended: list[tuple[Place, Buffer]] = []
    placed: list[tuple[str, int, int, Place]] = []
    for place, buffer in buffers.items():
        if buffer.on_chip and buffer.address is not None:
            end = buffer.address + buffer.extent
            placed.append((buffer.memory.value, buffer.address, end, place))
        else:
            for other, known in open_ended:
                if known.memory is buffer.memory:
                    yield other, place
            open_ended.append((place, buffer))
    placed.sort(key=lambda use: use[:2])
    for index, (memory, _, end, place) in enumerate(placed):
        for other_memory, start, _, other in placed[index + 1 :]:
            if other_memory != memory or start >= end:
                break
            yield place, other
    for place, buffer in open_ended:
        yield from (
            (place, other) for memory, _, _, other in placed if memory == buffer.memory.value
        )


def _operands(item: Item) -> Iterator[tuple[Access | Register, bool]]:
    """Memory and registers, those in addresses among them, and whether they are written."""
    for use in item.instruction.uses():
        if isinstance(use.operand, Access):
            yield use.operand, use.role.is_write
            yield from ((register, False) for register in use.operand.registers)
        elif isinstance(use.operand, Register):
            yield use.operand, use.role.is_write


def counted(items: Sequence[Item], uses: Uses) -> set[int]:
    """Positions of items that others may wait for."""
    positions: set[int] = set()
    for item in items:
        for place, use in uses.by_item[item.position]:
            if item.position not in positions and _is_wanted(item, use, uses.lines[place]):
                positions.add(item.position)
    return positions


def _is_wanted(item: Item, use: Pattern, lines: Iterable[Line]) -> bool:
    return any(
        (use.is_write or line.is_write)
        and line.stream is not item.stream
        and line.engine is not item.stream
        for line in lines
    )


def sources(consumer: Item, uses: Uses, known: Facts) -> list[Source]:
    """What the consumer waits for, newest only; `known` is done anyway.

    Items of its own stream, and of the engine that starts it, are in order without semaphores.
    """
    by_counter: dict[Counter, list[Source]] = {}
    for place, use in uses.by_item[consumer.position]:
        for ends in _ends(consumer, use, uses.lines[place]):
            _look_back(consumer, use, ends, known, by_counter)
    return [row for rows in by_counter.values() for row in rows]


def _ends(consumer: Item, use: Pattern, lines: Iterable[Line]) -> tuple[list[End], list[End]]:
    """Where to begin in each line: before the consumer, and behind it in its outermost loop."""
    before: list[End] = []
    behind: list[End] = []
    own, engine, outermost = consumer.stream, consumer.engine, consumer.loops[:1]
    for number, line in enumerate(lines):
        if line.stream is own or line.stream is engine or not (use.is_write or line.is_write):
            continue
        first = bisect_left(line.users, consumer.position, key=_position)
        if first:
            before.append((-line.users[first - 1][0].position, number, first - 1, 0, line))
        if outermost and line.loops[:1] == outermost and first < len(line.users):
            last = len(line.users) - 1
            behind.append((-line.users[last][0].position, number, last, first, line))
    return before, behind


def _look_back(
    consumer: Item,
    use: Pattern,
    ends: list[End],
    known: Facts,
    by_counter: dict[Counter, list[Source]],
) -> None:
    """Looks at lines from their ends on, always at the newest use of all; leaves a line when all
    that is older is done."""
    heapify(ends)
    while ends:
        _, number, index, first, line = ends[0]
        producer, other = line.users[index]
        goes_on = _look(consumer, use, producer, other, line.is_vague, known, by_counter)
        if goes_on and index > first:
            position = line.users[index - 1][0].position
            heapreplace(ends, (-position, number, index - 1, first, line))
        else:
            heappop(ends)


def _position(user: tuple[Item, Pattern]) -> int:
    return user[0].position


def _look(
    consumer: Item,
    use: Pattern,
    producer: Item,
    other: Pattern,
    is_vague: bool,
    known: Facts,
    by_counter: dict[Counter, list[Source]],
) -> bool:
    """Adds what the consumer waits for because of one pair of accesses; False: nothing, as all that
    the producer ever did before is done anyway.

    The level that is asked first has the greatest bound.
    """
    loops = consumer.loops
    kept = by_counter.setdefault(producer.counter, [])
    for number, level in enumerate(levels(consumer, producer)):
        if _is_done(bound(consumer, producer, level), producer.counter, kept, known, consumer):
            return number > 0
        if is_vague:
            source: Source | None = nearest(consumer, producer, level)
        else:
            source = newest(consumer, use, producer, other, level)
        if source is None or _is_done(source.count, producer.counter, kept, known, consumer):
            continue
        kept[:] = [earlier for earlier in kept if not exceeds(source.count, earlier.count, loops)]
        kept.append(source)
    return True


def _is_done(
    count: Row, counter: Counter, kept: Sequence[Source], known: Facts, consumer: Item
) -> bool:
    loops = consumer.loops
    if count[0] <= 0 and greatest(count, loops) <= 0:
        return True
    for earlier in kept:
        if exceeds(earlier.count, count, loops):
            return True
    return has(known, counter, count, loops)
