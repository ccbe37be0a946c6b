"""What is known to be done when an instruction begins, and which waits follow from others.

A fact says that so many instructions of a counter are done, as a function of the loop variables.
Facts come from waits, from instructions before on the same engine, and from the producer that a
wait is for: what was known when it began holds all the more when it is done. In a loop, what was
known at the end of an iteration holds in the next one; that needs a first look at the loop.

Streams complete in order. So what is known of one of a stream's loops says that the loops before
are over, and facts about them are left out. It says nothing if a register may decide that the loop
has no trip.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.sync.distance import Source
from neuronjax.lower.sync.streams import (
    OUTSIDE,
    UNKNOWN_TRIPS,
    Counter,
    Item,
    Row,
    Stream,
    Turn,
    composed,
    exceeds,
    greatest,
    least,
    leave_out_older,
)

Facts = dict[Counter, tuple[Row, ...]]
MOST_FACTS = 6
"""Facts about one counter that are kept."""
Region = tuple[int, int, int]
"""A loop, and the first and last of some of its iterations."""


def has(facts: Facts, counter: Counter, wanted: Row, loops: Sequence[Turn]) -> bool:
    """Whether a fact says as much in every iteration."""
    rows = facts.get(counter)
    if rows is not None:
        for row in rows:
            if exceeds(row, wanted, loops):
                return True
    return _is_over(facts, counter, loops)


def _is_over(facts: Facts, counter: Counter, loops: Sequence[Turn]) -> bool:
    """Whether a later loop of the counter's stream has begun in every iteration."""
    stream, loop = counter.stream, counter.loop
    if loop == OUTSIDE:
        return False
    for other, rows in facts.items():
        if other.loop > loop and other.stream is stream and not other.may_be_empty:
            for row in rows:
                if least(row, loops) > 0:
                    return True
    return False


def add(facts: Facts, counter: Counter, new: Row, loops: Sequence[Turn]) -> None:
    """Takes a fact up, unless it says nothing new."""
    if has(facts, counter, new, loops):
        return
    if new[0] > 0 or greatest(new, loops) > 0:
        kept = [row for row in facts.get(counter, ()) if not exceeds(new, row, loops)]
        facts[counter] = (new, *kept[: MOST_FACTS - 1])
        if least(new, loops) > 0:
            leave_out_older(facts, counter)


def add_all(facts: Facts, new: Facts, loops: Sequence[Turn]) -> None:
    """Takes all facts up."""
    for counter, rows in new.items():
        for row in rows:
            add(facts, counter, row, loops)


def holds_outside(
    row: Row, known: Iterable[Row], regions: Collection[Region], loops: Sequence[Turn]
) -> bool:
    """Whether `row` is known anyway, or says nothing, in each of some regions."""
    if not regions:
        return True
    rows = [(0,) * len(row), *known]
    return all(any(_exceeds_in(known, row, region, loops) for known in rows) for region in regions)


def _exceeds_in(row: Row, other: Row, region: Region, loops: Sequence[Turn]) -> bool:
    total = row[0] - other[0]
    loop, first, last = region
    for index, turn in enumerate(loops):
        step = row[index + 1] - other[index + 1]
        if index == loop:
            total += min(step * first, step * last)
        elif step < 0:
            total += step * (turn.trips - 1)
    return total >= 0


@dataclass(slots=True)
class Engines:
    """What each engine knows at a point of the program, within the loops about this point."""

    loops: list[Turn] = field(default_factory=list)
    known: dict[Stream, Facts] = field(default_factory=dict)
    #: What was known at the end of loops, in the first look.
    ends: dict[Turn, dict[Stream, Facts]] = field(default_factory=dict)
    #: What fences tell every engine behind loops whose trips registers decide about.
    fenced: Facts = field(default_factory=dict)
    #: What was known before such a loop, which may have no trip.
    _outside: dict[Stream, Facts] = field(default_factory=dict)

    def of(self, engine: Stream) -> Facts:
        """The facts that an engine knows."""
        if engine not in self.known:
            still = (0,) * len(self.loops)
            self.known[engine] = {
                counter: tuple((*row, *still) for row in rows)
                for counter, rows in self.fenced.items()
            }
        return self.known[engine]

    def enter(self, turn: Turn, ends: dict[Stream, Facts] | None) -> None:
        """A loop begins; `ends` is what was known at its end in an earlier look."""
        if turn.trips == UNKNOWN_TRIPS:
            self._outside = dict(self.known)
        self.loops.append(turn)
        self.known = {
            engine: {counter: tuple((*row, 0) for row in rows) for counter, rows in facts.items()}
            for engine, facts in self.known.items()
        }
        for engine, facts in (ends or {}).items():
            own = self.known.setdefault(engine, {})
            for counter, rows in facts.items():
                before = own.get(counter, ())
                for row in rows:
                    if row not in before:
                        self._carry(own, counter, row)

    def _carry(self, own: Facts, counter: Counter, end: Row) -> None:
        """Takes up what was known at the end of the iteration before, if it holds in the first."""
        row = (end[0] - end[-1], *end[1:])
        first = (len(self.loops) - 1, 0, 0)
        if holds_outside(row, own.get(counter, ()), [first], self.loops):
            add(own, counter, row, self.loops)
        elif not any(end[1:]) and end[0] > 0 and self.loops[-1].trips > 1:
            # Nothing in the first iteration, and as much at last: linear between.
            slope = end[0] // (self.loops[-1].trips - 1)
            add(own, counter, (*(0 for _ in end[1:]), slope), self.loops)

    def leave(self) -> None:
        """Leaves the innermost loop, which ends."""
        turn = self.loops.pop()
        self.ends[turn] = self.known
        self.known = {
            engine: _folded(facts, turn, self.loops) for engine, facts in self.known.items()
        }
        if turn.trips == UNKNOWN_TRIPS:
            self.fenced |= {
                counter: ((turn.trips * count,),) for counter, count in turn.counts.items()
            }
            self.known = {
                engine: {**facts, **self.fenced} for engine, facts in self._outside.items()
            }


def _folded(facts: Facts, turn: Turn, loops: Sequence[Turn]) -> Facts:
    """Facts at the last iteration of the innermost loop."""
    folded: Facts = {}
    for counter, rows in facts.items():
        if len(rows) == 1 and not rows[0][-1]:
            folded[counter] = (rows[0][:-1],)
            continue
        for base, *steps, last in rows:
            add(folded, counter, (base + last * (turn.trips - 1), *steps), loops)
    return folded


def following(source: Source, at_start: Facts, known: Facts, loops: Sequence[Turn]) -> Facts:
    """What a wait for `source` tells, from what its producer knew when it began.

    What its engine had to do before is done as well. `known` is what the one that waits knows:
    where the producer has no such iteration, facts must hold by themselves.
    """
    width = len(loops) + 1
    if not source.outside and source.at == _same_iteration(width):
        told = dict(at_start)
        for counter, rows in source.producer.done_before():
            told[counter] = (*told.get(counter, ()), *rows)
        return told
    told = {}
    for counter, rows in (*at_start.items(), *source.producer.done_before()):
        for row in rows:
            new = composed(row, source.at, width)
            if holds_outside(new, known.get(counter, ()), source.outside, loops):
                told[counter] = (*told.get(counter, ()), new)
    return told


@functools.cache
def _same_iteration(width: int) -> tuple[Row, ...]:
    """What an iteration is that is the one it is seen from."""
    return tuple(tuple(int(at == loop) for at in range(width)) for loop in range(1, width))


def needed(
    item: Item, sources: list[Source], known: Facts, begun: dict[int, Facts]
) -> tuple[list[Source], Facts]:
    """The waits that do not follow from others, and all that is known when the item begins."""
    loops = item.loops
    kept = [source for source in sources if not has(known, source.counter, source.count, loops)]
    if not kept:
        return kept, known
    told = {
        id(source): following(source, begun.get(source.producer.position, {}), known, loops)
        for source in kept
    }
    in_order = sorted(kept, key=lambda source: source.producer.position)
    for source in in_order if len(kept) > 1 else ():
        others = [other for other in kept if other is not source]
        if any(_tells(other, told[id(other)], source, loops) for other in others):
            kept = others
    facts = dict(known)
    for source in kept:
        add(facts, source.counter, source.count, loops)
        add_all(facts, told[id(source)], loops)
    return kept, facts


def _tells(source: Source, told: Facts, other: Source, loops: Sequence[Turn]) -> bool:
    if source.counter is other.counter:
        return exceeds(source.count, other.count, loops)
    return has(told, other.counter, other.count, loops)
