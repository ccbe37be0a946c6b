"""How far back the newest iteration lies that an access conflicts with.

For a consumer at iteration u and a producer at iteration v, the question is for which v the two
patterns meet. Over the loops about both, v = u - d; a loop about the producer alone follows one
about the consumer alone if their strides agree, v = r·u - d, else v = -d. With that, the addresses
differ by Σ stride · d plus what other loops and the shapes of the accesses add, and of all d that
let them meet, the one is wanted that the stream of the producer reaches last: Σ count · d is least.
That is an integer program of a few variables, solved by depth-first search; a search that takes too
long ends with the nearest iteration there is, which is always safe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.lower.patterns import Pattern
from neuronjax.lower.streams import Item, Row, Stream

MOST_STEPS = 400
"""Steps of a search; what takes longer is taken for a conflict with the nearest iteration."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a consumer at u waits for: a producer at the iteration `at`, and all before.

    `count` is the number of the producer's stream by then. Where u lies in one of the `outside`
    regions (loop, first, last), there is no such iteration.
    """

    producer: Item
    at: tuple[Row, ...]
    count: Row
    outside: tuple[tuple[int, int, int], ...]

    @property
    def stream(self) -> Stream:
        return self.producer.stream


@dataclass(slots=True)
class _Unknown:
    """A distance: what it costs, its range, and what it adds to address, partition and slot."""

    cost: int
    low: int
    high: int
    start: int
    partition: int
    slot: int
    #: For loops of the producer alone: the consumer's loop that it follows, and how fast.
    follows: tuple[int, int] | None = None


@dataclass(slots=True)
class _Window:
    """A linear condition: the sum lies within it; `free` are terms that take any step."""

    low: int
    high: int
    free: list[tuple[int, int]]


def common_loops(one: Item, other: Item) -> int:
    """How many loops are about both."""
    shared = 0
    for left, right in zip(one.loops, other.loops, strict=False):
        if left is not right:
            break
        shared += 1
    return shared


def nearest(consumer: Item, producer: Item) -> Source | None:
    """The newest iteration of the producer that comes before; None: there is none."""
    shared = common_loops(consumer, producer)
    is_before = producer.position < consumer.position
    if not is_before and not shared:
        return None
    distances = [0] * shared
    if not is_before:
        distances[-1] = 1
    inner = [-(turn.trips - 1) for turn in producer.loops[shared:]]
    return _source(consumer, producer, shared, [*distances, *inner], [None] * len(inner))


def newest(consumer: Item, use: Pattern, producer: Item, other: Pattern) -> Source | None:
    """The newest conflicting iteration of the producer that comes before; None: none conflicts."""
    found, is_sound = _solved(consumer, use, producer, other, follow=True)
    return found if is_sound else _solved(consumer, use, producer, other, follow=False)[0]


def _solved(
    consumer: Item, use: Pattern, producer: Item, other: Pattern, *, follow: bool
) -> tuple[Source | None, bool]:
    """The source, and whether it never lies behind the last iteration of the producer."""
    shared = common_loops(consumer, producer)
    is_before = producer.position < consumer.position
    if not is_before and not shared:
        return None, True
    same = use.buffer is other.buffer or use.buffer == other.buffer
    unknowns = _unknowns(consumer, use, producer, other, shared, follow)
    search = _Search(
        unknowns,
        shared,
        is_before,
        _addresses(consumer, use, producer, other, unknowns, same),
        _partitions(consumer, use, producer, other, unknowns, same),
        _slots(consumer, use, producer, other, unknowns, same),
    )
    answer = search.run()
    if search.steps > MOST_STEPS:
        return nearest(consumer, producer), True
    if answer is None:
        return None, True
    follows = [unknown.follows for unknown in unknowns[shared:]]
    for distance, turn, followed in zip(
        answer[shared:], producer.loops[shared:], follows, strict=True
    ):
        if followed is not None:
            loop, pace = followed
            if pace * (consumer.loops[loop].trips - 1) - distance > turn.trips - 1:
                return None, False
    return _source(consumer, producer, shared, answer, follows), True


def _source(
    consumer: Item,
    producer: Item,
    shared: int,
    distances: Sequence[int],
    follows: Sequence[tuple[int, int] | None],
) -> Source:
    width = len(consumer.loops) + 1
    at: list[Row] = []
    outside: list[tuple[int, int, int]] = []
    for index, distance in enumerate(distances):
        row = [0] * width
        row[0] = -distance
        if index < shared:
            row[index + 1] = 1
            trips = consumer.loops[index].trips
            if distance > 0:
                outside.append((index, 0, distance - 1))
            elif distance < 0:
                outside.append((index, trips + distance, trips - 1))
        elif (followed := follows[index - shared]) is not None:
            loop, pace = followed
            row[loop + 1] = pace
            if distance > 0:
                outside.append((loop, 0, -(-distance // pace) - 1))
        at.append(tuple(row))
    count = _composed(producer.count(), at, width)
    return Source(producer, tuple(at), count, tuple(outside))


def _composed(row: Row, at: Sequence[Row], width: int) -> Row:
    total = [0] * width
    total[0] = row[0]
    for factor, values in zip(row[1:], at, strict=True):
        if factor:
            for index, value in enumerate(values):
                total[index] += factor * value
    return tuple(total)


# The conditions


def _unknowns(
    consumer: Item, use: Pattern, producer: Item, other: Pattern, shared: int, follow: bool
) -> list[_Unknown]:
    costs = producer.count_before(producer.stream)
    start = other.start if other.start is not None and use.start is not None else other.partition
    is_known = start is other.start
    found = []
    free = list(range(shared, len(consumer.loops)))
    for index, turn in enumerate(producer.loops):
        place = index + 1
        unknown = _Unknown(
            cost=costs[place],
            low=1 - turn.trips,
            high=turn.trips - 1 if index < shared else 0,
            start=start[place] if is_known else 0,
            partition=other.partition[place],
            slot=other.slot[place],
        )
        if index >= shared and follow:
            for loop in free:
                pace = _pace(unknown, use, loop + 1)
                if pace:
                    unknown.follows = loop, pace
                    unknown.high = pace * (consumer.loops[loop].trips - 1)
                    free.remove(loop)
                    break
        found.append(unknown)
    return found


def _pace(unknown: _Unknown, use: Pattern, place: int) -> int:
    """How many times faster the consumer's loop goes through the same addresses; 0: it does not."""
    mine = (use.start[place] if use.start is not None else 0, use.partition[place], use.slot[place])
    theirs = (unknown.start, unknown.partition, unknown.slot)
    pace = 0
    for left, right in zip(mine, theirs, strict=True):
        if not left and not right:
            continue
        if not right or left % right or left // right < 1 or pace not in (0, left // right):
            return 0
        pace = left // right
    return pace


def _free(
    consumer: Item, mine: Row, theirs: Row, producer: Item, unknowns: Sequence[_Unknown]
) -> list[tuple[int, int]]:
    """What the consumer's loops add to a difference beyond the distances: coefficient, trips."""
    factors = list(mine[1:])
    for index, unknown in enumerate(unknowns):
        shared = index < len(consumer.loops) and consumer.loops[index] is producer.loops[index]
        if shared:
            factors[index] -= theirs[index + 1]
        elif unknown.follows is not None:
            loop, pace = unknown.follows
            factors[loop] -= pace * theirs[index + 1]
    pairs = zip(factors, consumer.loops, strict=True)
    return [(factor, turn.trips) for factor, turn in pairs if factor and turn.trips > 1]


def _addresses(
    consumer: Item,
    use: Pattern,
    producer: Item,
    other: Pattern,
    unknowns: Sequence[_Unknown],
    same: bool,
) -> _Window | None:
    """The condition on bytes; None: they may meet anywhere."""
    mine, theirs = use.start, other.start
    if mine is None or theirs is None:
        return None
    free = _free(consumer, mine, theirs, producer, unknowns)
    free += use.strides
    free += [(-stride, size) for stride, size in other.strides]
    shift = mine[0] - theirs[0]
    if not same:
        first, second = use.buffer, other.buffer
        shift += first.address - second.address  # type: ignore[union-attr, operator]
        for buffer, sign in ((first, 1), (second, -1)):
            if buffer.slots > 1:  # type: ignore[union-attr]
                free.append((sign * buffer.stride, buffer.slots))  # type: ignore[union-attr]
    free.sort(key=lambda term: -abs(term[0]))
    return _Window(other.low - use.high - shift, other.high - use.low - shift, free)


def _partitions(
    consumer: Item,
    use: Pattern,
    producer: Item,
    other: Pattern,
    unknowns: Sequence[_Unknown],
    same: bool,
) -> _Window:
    free = _free(consumer, use.partition, other.partition, producer, unknowns)
    shift = use.partition[0] - other.partition[0]
    if not same:
        shift += use.buffer.partition - other.buffer.partition  # type: ignore[union-attr]
    return _Window(1 - use.lanes - shift, other.lanes - 1 - shift, free)


def _slots(
    consumer: Item,
    use: Pattern,
    producer: Item,
    other: Pattern,
    unknowns: Sequence[_Unknown],
    same: bool,
) -> tuple[int, int]:
    """Modulus and remainder of the condition on slots; 1: it always holds."""
    slots = getattr(use.buffer, "slots", 1)
    if not same or slots == 1:
        return 1, 0
    free = _free(consumer, use.slot, other.slot, producer, unknowns)
    modulus = math.gcd(slots, *(factor for factor, _ in free))
    return modulus, (other.slot[0] - use.slot[0]) % modulus


# The search


class _Search:
    """Depth first through distances, the cheapest first."""

    def __init__(
        self,
        unknowns: Sequence[_Unknown],
        shared: int,
        is_before: bool,
        addresses: _Window | None,
        partitions: _Window,
        slots: tuple[int, int],
    ) -> None:
        self.unknowns = unknowns
        self.shared = shared
        self.is_before = is_before
        self.addresses = addresses
        self.partitions = partitions
        self.modulus, self.remainder = slots
        self.steps = 0
        self.best: tuple[int, list[int]] | None = None
        self.chosen = [0] * len(unknowns)
        self.cheapest = _suffixes([each.cost * each.low for each in unknowns])
        self.reach = _reach([(each.start, each.low, each.high) for each in unknowns], addresses)
        self.lanes = _reach([(u.partition, u.low, u.high) for u in unknowns], partitions)

    def run(self) -> list[int] | None:
        """The best distances; None: the patterns never meet."""
        if self.modulus > 1:
            steps = math.gcd(self.modulus, *(each.slot for each in self.unknowns))
            if self.remainder % steps:
                return None
        self._go(0, 0, 0, 0, 0, False)
        return None if self.best is None else self.best[1]

    def _go(
        self, index: int, cost: int, start: int, partition: int, slot: int, is_later: bool
    ) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            return
        if self.best is not None and cost + self.cheapest[index] >= self.best[0]:
            return
        if index == len(self.unknowns):
            if self._meets(start, partition, slot):
                self.best = cost, list(self.chosen)
            return
        unknown = self.unknowns[index]
        low, high = unknown.low, unknown.high
        is_open = index < self.shared and not is_later
        if is_open:
            last = index == self.shared - 1
            low = 1 if last and not self.is_before else 0
        low, high = _narrowed(low, high, unknown.start, start, self.addresses, self.reach[index])
        low, high = _narrowed(
            low, high, unknown.partition, partition, self.partitions, self.lanes[index]
        )
        if not unknown.start and not unknown.partition and not unknown.slot % self.modulus:
            high = min(high, low + 1 if is_open and not low else low)
        for distance in range(low, high + 1):
            spent = cost + unknown.cost * distance
            if self.best is not None and spent + self.cheapest[index + 1] >= self.best[0]:
                return
            self.chosen[index] = distance
            self._go(
                index + 1,
                spent,
                start + unknown.start * distance,
                partition + unknown.partition * distance,
                slot + unknown.slot * distance,
                is_later or (is_open and distance > 0),
            )
            if self.steps > MOST_STEPS:
                return

    def _meets(self, start: int, partition: int, slot: int) -> bool:
        if (slot - self.remainder) % self.modulus:
            return False
        window = self.addresses
        if window is None:
            return True
        return _hits(window.free, 0, window.low - start, window.high - start)


def _suffixes(values: Sequence[int]) -> list[int]:
    """Sums of the values from each place on."""
    found = [0]
    for value in reversed(values):
        found.append(found[-1] + value)
    return found[::-1]


def _reach(terms: Sequence[tuple[int, int, int]], window: _Window | None) -> list[tuple[int, int]]:
    """What all terms behind each place, and the free ones, add at least and at most."""
    low = high = 0
    for factor, count in window.free if window is not None else ():
        end = factor * (count - 1)
        low, high = low + min(0, end), high + max(0, end)
    found = []
    for factor, first, last in reversed(terms):
        found.append((low, high))
        ends = factor * first, factor * last
        low, high = low + min(ends), high + max(ends)
    return found[::-1]


def _narrowed(
    low: int, high: int, factor: int, sum_: int, window: _Window | None, rest: tuple[int, int]
) -> tuple[int, int]:
    """The range of a distance that leaves the condition possible."""
    if window is None:
        return low, high
    first, last = window.low - sum_ - rest[1], window.high - sum_ - rest[0]
    if not factor:
        return (low, high) if first <= 0 <= last else (1, 0)
    if factor < 0:
        first, last, factor = -last, -first, -factor
    return max(low, -(-first // factor)), min(high, last // factor)


def _hits(free: list[tuple[int, int]], index: int, low: int, high: int) -> bool:
    """Whether terms from `index` on, greatest factors first, can add up to low … high."""
    if index == len(free):
        return low <= 0 <= high
    least = most = 0
    for factor, count in free[index + 1 :]:
        end = factor * (count - 1)
        least, most = least + min(0, end), most + max(0, end)
    factor, count = free[index]
    first, last = low - most, high - least
    if factor < 0:
        first, last, sign = -last, -first, -1
    else:
        sign = 1
    begin, end = max(0, -(-first // abs(factor))), min(count - 1, last // abs(factor))
    if end - begin >= _MOST_CHOICES:
        return True
    return any(
        _hits(free, index + 1, low - sign * abs(factor) * step, high - sign * abs(factor) * step)
        for step in range(begin, end + 1)
    )


_MOST_CHOICES = 8
"""Steps of one free term that are tried; with more, patterns are taken to meet."""
