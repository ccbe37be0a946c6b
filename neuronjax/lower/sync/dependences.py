"""What each instruction of a kernel has to wait for: pairs whose accesses conflict."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace

from neuronjax.lower.sync.distance import Source, bound, levels, nearest, newest
from neuronjax.lower.sync.knowledge import Facts, has
from neuronjax.lower.sync.patterns import Pattern, pattern
from neuronjax.lower.sync.streams import Counter, Item, Row, Stream, Turn, exceeds, greatest, least
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register

Place = tuple[str, str]
"""What stands for a buffer or register."""
Overlap = Callable[[Buffer, Buffer], bool | None]
"""Whether two different buffers share memory: None if they may, nobody knows where."""
User = tuple[Item, Pattern]
"""An item, and what it touches."""
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

    users: list[User]
    #: The positions of these items.
    positions: list[int]


@dataclass(slots=True)
class Chain:
    """Uses of some memory by instructions of one stream that one engine starts, all reads or all
    writes: lines of the kernel's outermost loops, in program order.

    What a consumer behind a loop waits for there comes after all loops before.
    """

    engine: Stream
    stream: Stream
    is_write: bool
    #: Whether nobody knows if this is the memory in question.
    is_vague: bool
    #: Outermost loop, or None for instructions in no loop -> their lines.
    loops: dict[Turn | None, list[Line]] = field(default_factory=dict)
    #: The outermost loops, and the position of the first use in each.
    turns: list[Turn] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, line: Line, first: Item) -> None:
        """Takes up a line, of which `first` is the first instruction."""
        outermost = first.loops[0] if first.loops else None
        if outermost is not None and outermost not in self.loops:
            self.turns.append(outermost)
            self.starts.append(first.position)
        self.loops.setdefault(outermost, []).append(line)

    def waits_for(self, producer: Item, use: Pattern) -> bool:
        """Whether its instructions may need a semaphore to wait for a use."""
        is_ordered = self.stream is producer.stream or self.engine is producer.stream
        return (use.is_write or self.is_write) and not is_ordered

    def delays(self, consumer: Item, use: Pattern) -> bool:
        """Whether a use may need a semaphore to wait for its instructions."""
        is_ordered = self.stream is consumer.stream or self.stream is consumer.engine
        return (use.is_write or self.is_write) and not is_ordered


@dataclass(slots=True)
class Uses:
    """All uses of the memory that items touch, by buffer and register."""

    by_item: dict[int, list[tuple[Place, Pattern]]] = field(default_factory=dict)
    #: Place -> uses of it, and of places that share memory with it.
    chains: dict[Place, list[Chain]] = field(default_factory=dict)


def uses_of(items: Sequence[Item], overlap: Overlap) -> Uses:
    """The uses of all items."""
    uses = Uses()
    buffers: dict[Place, Buffer] = {}
    by_place: dict[Place, _Lines] = {}
    places: dict[int, Place] = {}  # by the identity of a buffer
    for item in items:
        own = uses.by_item[item.position] = []
        keys = [(item.engine, item.stream, is_write, item.loops) for is_write in (False, True)]
        for operand, is_write in _operands(item.instruction):
            if isinstance(operand, Register):
                place = ("register", operand.name)
            else:
                buffer = operand.buffer
                known = places.get(id(buffer))
                if known is None:
                    known = places[id(buffer)] = (buffer.memory.value, buffer.name)
                    buffers[known] = buffer
                place = known
            accessed = pattern(operand, is_write, item.loops)
            own.append((place, accessed))
            lines = by_place.get(place)
            if lines is None:
                lines = by_place[place] = {}
            line = lines.get(keys[is_write])
            if line is None:
                line = lines[keys[is_write]] = Line([], [])
            line.users.append((item, accessed))
            line.positions.append(item.position)
    ranked = sorted(by_place)
    ranks = {place: 2 * number for number, place in enumerate(ranked)}  # odd: it is vague
    alike = _alike(by_place, buffers, overlap)
    shared = {place: [ranks[tile] for tile in tiles] for place, tiles in alike.items()}
    for place, other in _near({place: buffers[place] for place in alike if place in buffers}):
        answer = overlap(buffers[place], buffers[other])
        if answer is not False:
            shared[place] += [ranks[tile] + (answer is None) for tile in alike[other]]
            shared[other] += [ranks[tile] + (answer is None) for tile in alike[place]]
    chains: dict[frozenset[int], list[Chain]] = {}
    for place, near in shared.items():
        others = frozenset(near)
        if others not in chains:
            chains[others] = _chains([(by_place[ranked[n // 2]], n % 2 == 1) for n in sorted(near)])
        uses.chains.update(dict.fromkeys(alike[place], chains[others]))
    return uses


def _alike(
    places: Iterable[Place], buffers: Mapping[Place, Buffer], overlap: Overlap
) -> dict[Place, list[Place]]:
    """The first of those places that share memory with the same ones, and all of them: tiles that
    lie at one place, as many as a loop declares that is written out. A buffer that calls give, so
    that its own place does not decide, is like no other."""
    by_spot: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        spot: tuple[object, ...] = (place,)
        buffer = buffers.get(place)
        is_placed = buffer is not None and buffer.on_chip and buffer.address is not None
        if buffer is not None and is_placed and overlap(buffer, buffer):
            rows = (buffer.partition, buffer.partitions)
            spot = (buffer.memory, buffer.address, buffer.extent, *rows)
        by_spot.setdefault(spot, []).append(place)
    return {tiles[0]: tiles for tiles in by_spot.values()}


_Key = tuple[Stream, Stream, bool, tuple[Turn, ...]]
"""Of a line: the stream that starts its items, the one that completes them, whether they write, and
the loops about them."""
_Lines = dict[_Key, Line]
"""The lines of one place, in the order of their first uses."""


def _chains(near: Sequence[tuple[_Lines, bool]]) -> list[Chain]:
    """The lines of places that share memory, and whether each of these is vague, as chains."""
    parts = [
        (number, is_vague, key, line)
        for number, (lines, is_vague) in enumerate(near)
        for key, line in lines.items()
    ]
    if len(near) > 1:
        parts.sort(key=lambda part: part[3].positions[0])
    merged: dict[tuple[_Key, bool], list[tuple[int, Line]]] = {}
    for number, is_vague, key, line in parts:
        merged.setdefault((key, is_vague), []).append((number, line))
    chains: dict[tuple[Stream, Stream, bool, bool], Chain] = {}
    for (key, is_vague), lines in merged.items():
        of_chain = (*key[:3], is_vague)
        chain = chains.get(of_chain)
        if chain is None:
            chain = chains[of_chain] = Chain(*of_chain)
        line = lines[0][1] if len(lines) == 1 else _merged(lines)
        chain.add(line, line.users[0][0])
    return list(chains.values())


def _merged(lines: list[tuple[int, Line]]) -> Line:
    """Lines of several places as one; of one item, the uses of the first place come first."""
    lines.sort(key=lambda line: line[0])
    users = [user for _, line in lines for user in line.users]
    users.sort(key=lambda user: user[0].position)
    return Line(users, [item.position for item, _ in users])


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


def _operands(instruction: Instruction) -> list[tuple[Access | Register, bool]]:
    """Memory and registers, those in addresses among them, and whether they are written."""
    operands: list[tuple[Access | Register, bool]] = []
    for use in instruction.uses():
        operand = use.operand
        if isinstance(operand, Access):
            operands.append((operand, use.role.is_write))
            operands += [(register, False) for register in operand.registers]
        elif isinstance(operand, Register):
            operands.append((operand, use.role.is_write))
    return operands


def counted(items: Sequence[Item], uses: Uses) -> set[int]:
    """Positions of items that others may wait for."""
    positions: set[int] = set()
    for item in items:
        for place, use in uses.by_item[item.position]:
            if any(chain.waits_for(item, use) for chain in uses.chains[place]):
                positions.add(item.position)
                break
    return positions


def sources(consumer: Item, uses: Uses, known: Facts) -> list[Source]:
    """What the consumer waits for, newest only; `known` is done anyway.

    Items of its own stream, and of the engine that starts it, are in order without semaphores.
    """
    by_counter: dict[Counter, list[Source]] = {}
    for place, use in uses.by_item[consumer.position]:
        look = _look_back if consumer.loops else _look_straight
        for chain in uses.chains[place]:
            if chain.delays(consumer, use):
                look(consumer, use, chain, known, by_counter)
    return [row for rows in by_counter.values() for row in rows]


def _look_back(
    consumer: Item,
    use: Pattern,
    chain: Chain,
    known: Facts,
    by_counter: dict[Counter, list[Source]],
) -> None:
    """Looks at a chain: at instructions in no loop, at the consumer's own outermost loop, and from
    the loop before it on until all that is older is done."""
    look = partial(_look, consumer, use, chain.is_vague, known, by_counter)
    _walk(_before(consumer, chain.loops.get(None, ())), look)
    own = consumer.loops[0] if consumer.loops else None
    if own is not None:
        lines = chain.loops.get(own, ())
        _walk(_before(consumer, lines), look)
        _walk(_behind(consumer, lines), look)
    for number in reversed(range(bisect_left(chain.starts, consumer.position))):
        turn = chain.turns[number]
        lines = chain.loops[turn]
        is_open = turn is own or _walk(_before(consumer, lines), look)
        if not is_open and not lines[0].users[0][0].counter.may_be_empty:
            break


def _look_straight(
    consumer: Item,
    use: Pattern,
    chain: Chain,
    known: Facts,
    by_counter: dict[Counter, list[Source]],
) -> None:
    """Looks back for a consumer in no loop, faster if nothing in the chain is in one."""
    if chain.turns:
        _look_back(consumer, use, chain, known, by_counter)
        return
    ((line,),) = chain.loops.values()
    for index in range(bisect_left(line.positions, consumer.position) - 1, -1, -1):
        producer, other = line.users[index]
        kept = by_counter.setdefault(producer.counter, [])
        if _is_done(producer.count, producer.counter, kept, known, consumer):
            break
        _wait(consumer, use, chain.is_vague, known, kept, producer, other, level=0)


def _before(consumer: Item, lines: Sequence[Line]) -> list[End]:
    """The ends to begin at in each line: the last use before the consumer."""
    ends = []
    for number, line in enumerate(lines):
        first = bisect_left(line.positions, consumer.position)
        if first:
            ends.append((-line.positions[first - 1], number, first - 1, 0, line))
    return ends


def _behind(consumer: Item, lines: Sequence[Line]) -> list[End]:
    """The ends to begin at for what comes behind the consumer, in the iterations before."""
    ends = []
    for number, line in enumerate(lines):
        first, last = bisect_left(line.positions, consumer.position), len(line.positions) - 1
        if first <= last:
            ends.append((-line.positions[last], number, last, first, line))
    return ends


def _walk(ends: list[End], look: Callable[[Item, Pattern], Answer]) -> bool:
    """Looks at lines from their ends on, always at the newest use of all; leaves a line when all
    that is older is done. Returns whether what comes before these lines may not be done."""
    is_open = True
    if len(ends) > 1:
        heapify(ends)
    while ends:
        _, number, index, first, line = ends[0]
        answer = look(*line.users[index])
        is_open = is_open and answer is Answer.OPEN
        if answer is Answer.DONE or index == first:
            heappop(ends)
        else:
            position = line.positions[index - 1]
            heapreplace(ends, (-position, number, index - 1, first, line))
    return is_open


class Answer(enum.Enum):
    """What comes of a pair of accesses."""

    DONE = enum.auto()
    """All that the producer ever did before is done anyway."""
    WAITS = enum.auto()
    """The consumer waits for the producer in every iteration."""
    OPEN = enum.auto()
    """Neither, in some iteration at least."""


def _look(
    consumer: Item,
    use: Pattern,
    is_vague: bool,
    known: Facts,
    by_counter: dict[Counter, list[Source]],
    producer: Item,
    other: Pattern,
) -> Answer:
    """Adds what the consumer waits for because of one pair of accesses.

    The level that is asked first has the greatest bound.
    """
    kept = by_counter.setdefault(producer.counter, [])
    answer = Answer.OPEN
    for number, level in enumerate(levels(consumer, producer)):
        if _is_done(bound(consumer, producer, level), producer.counter, kept, known, consumer):
            return answer if number else Answer.DONE
        source = _wait(consumer, use, is_vague, known, kept, producer, other, level)
        if source is not None and least(source.count, consumer.loops) > 0:
            answer = Answer.WAITS
    return answer


def _wait(
    consumer: Item,
    use: Pattern,
    is_vague: bool,
    known: Facts,
    kept: list[Source],
    producer: Item,
    other: Pattern,
    level: int,
) -> Source | None:
    """Adds to `kept` what the consumer waits for because of a pair of accesses at a level."""
    if is_vague:
        source: Source | None = nearest(consumer, producer, level)
    else:
        source = newest(consumer, use, producer, other, level)
    if source is None or _is_done(source.count, producer.counter, kept, known, consumer):
        return None
    loops = consumer.loops
    kept[:] = [earlier for earlier in kept if not exceeds(source.count, earlier.count, loops)]
    kept.append(source)
    return source


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
