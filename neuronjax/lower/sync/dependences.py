"""What each instruction of a kernel has to wait for: pairs whose accesses conflict."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.sync.distance import Source, bound, levels, nearest, newest
from neuronjax.lower.sync.knowledge import Facts, has
from neuronjax.lower.sync.patterns import Pattern, pattern
from neuronjax.lower.sync.streams import Counter, Item, Row, Stream, exceeds, greatest
from neuronjax.program.operand import Access, Buffer, Register

Place = tuple[str, str]
"""What stands for a buffer or register."""
Overlap = Callable[[Buffer, Buffer], bool | None]
"""Whether two different buffers share memory: None if they may, nobody knows where."""


@dataclass(slots=True)
class Uses:
    """All uses of the memory that items touch, by buffer and register."""

    by_item: dict[int, list[tuple[Place, Pattern]]] = field(default_factory=dict)
    by_place: dict[Place, list[tuple[Item, Pattern]]] = field(default_factory=dict)
    #: Place -> places that share memory with it, and whether nobody knows where.
    shared: dict[Place, list[tuple[Place, bool]]] = field(default_factory=dict)


def uses_of(items: Sequence[Item], overlap: Overlap) -> Uses:
    """The uses of all items."""
    uses = Uses()
    buffers: dict[Place, Buffer] = {}
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
            uses.by_place.setdefault(place, []).append((item, accessed))
    uses.shared = {place: [(place, False)] for place in uses.by_place}
    for place, other in _near(buffers):
        answer = overlap(buffers[place], buffers[other])
        if answer is not False:
            uses.shared[place].append((other, answer is None))
            uses.shared[other].append((place, answer is None))
    return uses


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
    positions = set()
    for place, near in uses.shared.items():
        mine = uses.by_place[place]
        others = [use for other, _ in near for use in uses.by_place[other]]
        streams: dict[tuple[Stream, Stream], bool] = {}
        for item, use in others:
            key = item.engine, item.stream
            streams[key] = streams.get(key, False) or use.is_write
        for item, use in mine:
            if item.position not in positions and _is_wanted(item, use, streams):
                positions.add(item.position)
    return positions


def _is_wanted(item: Item, use: Pattern, streams: dict[tuple[Stream, Stream], bool]) -> bool:
    return any(
        (use.is_write or writes) and stream is not item.stream and engine is not item.stream
        for (engine, stream), writes in streams.items()
    )


def sources(consumer: Item, uses: Uses, known: Facts) -> list[Source]:
    """What the consumer waits for, newest only; `known` is done anyway.

    Items of its own stream, and of the engine that starts it, are in order without semaphores.
    """
    by_counter: dict[Counter, list[Source]] = {}
    own, engine, outermost = consumer.stream, consumer.engine, consumer.loops[:1]
    for place, use in uses.by_item[consumer.position]:
        for other, is_vague in uses.shared[place]:
            for producer, theirs in _newest_first(uses.by_place[other], consumer.position):
                stream = producer.stream
                if stream is own or stream is engine or not (use.is_write or theirs.is_write):
                    continue
                if producer.position >= consumer.position and producer.loops[:1] != outermost:
                    continue
                _look(consumer, use, producer, theirs, is_vague, known, by_counter)
    return [row for rows in by_counter.values() for row in rows]


def _newest_first(
    users: Sequence[tuple[Item, Pattern]], position: int
) -> Sequence[tuple[Item, Pattern]]:
    """Those before a position from the last to the first, and then those behind it."""
    first = bisect_left(users, position, key=_position)
    return [*users[:first][::-1], *users[first:][::-1]]


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
) -> None:
    """Adds what the consumer waits for because of one pair of accesses.

    The level that is asked first has the greatest bound.
    """
    loops = consumer.loops
    kept = by_counter.setdefault(producer.counter, [])
    for level in levels(consumer, producer):
        if _is_done(bound(consumer, producer, level), producer.counter, kept, known, consumer):
            return
        if is_vague:
            source: Source | None = nearest(consumer, producer, level)
        else:
            source = newest(consumer, use, producer, other, level)
        if source is None or _is_done(source.count, producer.counter, kept, known, consumer):
            continue
        kept[:] = [earlier for earlier in kept if not exceeds(source.count, earlier.count, loops)]
        kept.append(source)


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
