"""How far back the newest iteration lies that an access conflicts with.

For a consumer at iteration u and a producer at iteration v, the question is for which v the two
patterns meet. It is asked for each loop about both: in which earlier iteration of this loop, while
the loops about it are in the same one? And without any: in the same iteration of all of them.

Further in, a loop about both is shifted, v = u - d, if both patterns go through it at one pace; a
loop of the producer that goes through the same addresses as a loop of the consumer, perhaps slower,
follows it, v = pace · u - d; other loops stand, v = -d. With that, the addresses differ by
Σ stride · d plus what other loops and the shapes of the accesses add, and of all d that let them
meet, the one is wanted that the producer's stream reaches last: Σ count · d is least. That is an
integer program of a few variables, for `search`.

Nothing waits for what comes later in program order, even where d leads out of a loop: within a
loop, distances are less than its trips, and an iteration of a loop counts at least as much as all
iterations of the loops within it together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.lower.sync.patterns import Pattern
from neuronjax.lower.sync.search import Unknown, Window, cheapest, merged
from neuronjax.lower.sync.streams import Counter, Item, Row, composed, exceeds
from neuronjax.program.operand import Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a consumer at u waits for: a producer at the iteration `at`, and all before.

    `count` is what the producer's counter has come to by then. Where u lies in one of the `outside`
    regions (loop, first, last), there is no such iteration.
    """

    producer: Item
    at: tuple[Row, ...]
    count: Row
    outside: tuple[tuple[int, int, int], ...]

    @property
    def counter(self) -> Counter:
        return self.producer.counter


@dataclass(slots=True)
class _Way:
    """How a loop of the producer depends on one of the consumer: v = pace · u - distance."""

    loop: int
    pace: int


_STILL = _Way(0, 0)


def levels(consumer: Item, producer: Item) -> list[int]:
    """Loops about both in which the producer may be an iteration behind, innermost first.

    Before them comes their number: the producer is earlier in the same iteration.
    """
    shared = 0
    for left, right in zip(consumer.loops, producer.loops, strict=False):
        if left is not right:
            break
        shared += 1
    inner = range(shared - 1, -1, -1)
    return [shared, *inner] if producer.position < consumer.position else [*inner]


def nearest(consumer: Item, producer: Item, level: int) -> Source:
    """The newest iteration of the producer before, at that level."""
    distances = [0] * level
    ways = [_Way(loop, 1) for loop in range(level)]
    if _is_shared(consumer, producer, level):
        distances.append(1)
        ways.append(_Way(level, 1))
    inner = producer.loops[len(ways) :]
    distances += [1 - turn.trips for turn in inner]
    return _source(consumer, producer, distances, ways + [_STILL] * len(inner))


def bound(consumer: Item, producer: Item, level: int) -> Row:
    """The count of `nearest`."""
    count = producer.count
    base, steps = count[0], [0] * len(consumer.loops)
    for index, turn in enumerate(producer.loops):
        step = count[index + 1]
        if index < level:
            steps[index] = step
        elif index == level and _is_shared(consumer, producer, index):
            steps[index] = step
            base -= step
        else:
            base += step * (turn.trips - 1)
    return (base, *steps)


def newest(
    consumer: Item, use: Pattern, producer: Item, other: Pattern, level: int
) -> Source | None:
    """The newest iteration of the producer that conflicts, at that level; None: none does."""
    if level == len(producer.loops) == len(consumer.loops) and _begin_together(use, other):
        return nearest(consumer, producer, level)
    for follow in (True, False):
        ways = _ways(consumer, use, producer, other, level, follow)
        unknowns = _unknowns(consumer, producer, other, ways, level)
        offsets = cheapest(
            unknowns,
            _addresses(consumer, use, other, ways),
            _partitions(consumer, use, other, ways),
            _slots(consumer, use, other, ways),
        )
        if offsets is None:
            return None
        most = nearest(consumer, producer, level)
        if not offsets:
            return most
        if _is_within(consumer, producer, offsets, ways):
            source = _source(consumer, producer, offsets, ways)
            return most if exceeds(source.count, most.count, consumer.loops) else source
    raise AssertionError("loops that stand never lead behind the producer's last iteration")


def _begin_together(use: Pattern, other: Pattern) -> bool:
    """Whether two patterns always have their first element in common."""
    return (
        use.start == other.start
        and use.slot == other.slot
        and use.partition == other.partition
        and use.buffer == other.buffer
    )


def _is_shared(consumer: Item, producer: Item, loop: int) -> bool:
    both = min(len(consumer.loops), len(producer.loops))
    return loop < both and consumer.loops[loop] is producer.loops[loop]


def _is_within(
    consumer: Item, producer: Item, distances: Sequence[int], ways: Sequence[_Way]
) -> bool:
    """Whether loops that follow others never go further than to their last iteration."""
    for index, (distance, way) in enumerate(zip(distances, ways, strict=True)):
        if way.pace and not _is_shift(consumer, producer, index, way):
            last = way.pace * (consumer.loops[way.loop].trips - 1) - distance
            if last > producer.loops[index].trips - 1:
                return False
    return True


def _is_shift(consumer: Item, producer: Item, index: int, way: _Way) -> bool:
    return way.loop == index and way.pace == 1 and _is_shared(consumer, producer, index)


def _source(
    consumer: Item, producer: Item, distances: Sequence[int], ways: Sequence[_Way]
) -> Source:
    width = len(consumer.loops) + 1
    at: list[Row] = []
    outside: list[tuple[int, int, int]] = []
    for index, (distance, way) in enumerate(zip(distances, ways, strict=True)):
        row = [0] * width
        row[0] = -distance
        if way.pace:
            row[way.loop + 1] = way.pace
            trips = consumer.loops[way.loop].trips
            if distance > 0:
                outside.append((way.loop, 0, min(trips, -(-distance // way.pace)) - 1))
            elif distance < 0 and _is_shift(consumer, producer, index, way):
                outside.append((way.loop, trips + distance, trips - 1))
        at.append(tuple(row))
    count = composed(producer.count, at, width)
    return Source(producer, tuple(at), count, tuple(outside))


# The unknowns and the conditions


def _ways(
    consumer: Item, use: Pattern, producer: Item, other: Pattern, level: int, follow: bool
) -> list[_Way]:
    """How each loop of the producer goes: the outer ones together with the consumer's."""
    ways = []
    free = list(range(level, len(consumer.loops)))
    for index in range(len(producer.loops)):
        if not _is_together(consumer, use, producer, other, index, level):
            ways.append(_STILL)
            continue
        ways.append(_Way(index, 1))
        if index in free:
            free.remove(index)
    for index, way in enumerate(ways):
        if way.pace or not follow:
            continue
        for loop in free:
            pace = _pace(use, loop, other, index)
            if pace:
                ways[index] = _Way(loop, pace)
                free.remove(loop)
                break
    return ways


def _is_together(
    consumer: Item, use: Pattern, producer: Item, other: Pattern, index: int, level: int
) -> bool:
    """Whether a loop of the producer goes along with the same loop of the consumer."""
    if index < level:
        return True
    if not _is_shared(consumer, producer, index):
        return False
    return index == level or _pace(use, index, other, index) == 1


def _pace(use: Pattern, loop: int, other: Pattern, index: int) -> int:
    """How many times faster the consumer's loop goes through the same addresses; 0: it does not."""
    pace = 0
    mine, theirs = _steps(use, loop), _steps(other, index)
    if use.start is None or other.start is None:
        mine, theirs = mine[1:], theirs[1:]
    for left, right in zip(mine, theirs, strict=True):
        if not left and not right:
            continue
        if not right or left % right or left // right < 1 or pace not in (0, left // right):
            return 0
        pace = left // right
    return pace


def _steps(use: Pattern, loop: int) -> tuple[int, ...]:
    start = use.start[loop + 1] if use.start is not None else 0
    return start, use.partition[loop + 1], use.slot[loop + 1]


def _unknowns(
    consumer: Item, producer: Item, other: Pattern, ways: Sequence[_Way], level: int
) -> list[Unknown]:
    costs = producer.count_before(producer.counter)
    unknowns = []
    for index, (turn, way) in enumerate(zip(producer.loops, ways, strict=True)):
        start, partition, slot = _steps(other, index)
        low, high = 1 - turn.trips, 0
        if index < level:
            low = 0
        elif way.pace:
            high = way.pace * (consumer.loops[way.loop].trips - 1)
            if index == level and _is_shared(consumer, producer, index):
                low = 1
        unknowns.append(Unknown(costs[index + 1], low, high, start, partition, slot))
    return unknowns


def _free(consumer: Item, mine: Row, theirs: Row, ways: Sequence[_Way]) -> list[tuple[int, int]]:
    """What the consumer's loops add to a difference beyond the distances: stride and trips."""
    factors = list(mine[1:])
    for index, way in enumerate(ways):
        if way.pace:
            factors[way.loop] -= way.pace * theirs[index + 1]
    pairs = zip(factors, consumer.loops, strict=True)
    return [(factor, turn.trips) for factor, turn in pairs if factor and turn.trips > 1]


def _addresses(consumer: Item, use: Pattern, other: Pattern, ways: Sequence[_Way]) -> Window | None:
    """The condition on bytes; None: they may meet anywhere."""
    mine, theirs = use.start, other.start
    if mine is None or theirs is None:
        return None
    free = _free(consumer, mine, theirs, ways)
    free += use.strides
    free += [(-stride, size) for stride, size in other.strides]
    shift = mine[0] - theirs[0]
    if use.buffer != other.buffer:
        for pattern, sign in ((use, 1), (other, -1)):
            buffer = pattern.buffer
            assert isinstance(buffer, Buffer)
            shift += sign * (buffer.address or 0)
            if buffer.slots > 1:
                free.append((sign * buffer.stride, buffer.slots))
    return Window(1 - use.length - shift, other.length - 1 - shift, merged(free))


def _partitions(consumer: Item, use: Pattern, other: Pattern, ways: Sequence[_Way]) -> Window:
    free = _free(consumer, use.partition, other.partition, ways)
    shift = use.partition[0] - other.partition[0]
    if use.buffer != other.buffer:
        assert isinstance(use.buffer, Buffer)
        assert isinstance(other.buffer, Buffer)
        shift += use.buffer.partition - other.buffer.partition
    return Window(1 - use.lanes - shift, other.lanes - 1 - shift, merged(free))


def _slots(consumer: Item, use: Pattern, other: Pattern, ways: Sequence[_Way]) -> tuple[int, int]:
    """Modulus and remainder of the condition on slots; modulus 1: it always holds."""
    slots = use.buffer.slots if isinstance(use.buffer, Buffer) else 1
    if slots == 1 or use.buffer != other.buffer:
        return 1, 0
    free = _free(consumer, use.slot, other.slot, ways)
    modulus = math.gcd(slots, *(factor for factor, _ in free))
    return modulus, (other.slot[0] - use.slot[0]) % modulus
