"""Loops of `nl.affine_range` whose iterations depend on each other.

The compiler may change the order of such iterations; sums that every iteration adds to are allowed
(NKI language, affine_range). Here they keep their order, so values alone do not show the mistake.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from neuronjax.nki.loop_marks import LoopMarks
from neuronjax.nki.tracing import SHARED, Trace
from neuronjax.program.footprint import Footprint, footprint
from neuronjax.program.operand import Access


@dataclass(frozen=True)
class Carried:
    """What a loop hands from one iteration to the next, or its last iteration to what follows."""

    loop: str
    #: The line that reads, or that writes a result which several iterations write.
    place: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.what}, but iterations of nl.affine_range ({self.loop}) may run "
            "in any order; use nl.sequential_range"
        )


def carried(trace: Trace) -> list[Carried]:
    """The first such place of every loop."""
    uses = _Uses(trace)
    return [place for loop in _affine(trace.loops) for place in _in_loop(loop, uses)]


def _affine(loops: Sequence[LoopMarks]) -> Iterator[LoopMarks]:
    for loop in loops:
        if loop.is_affine and len(loop.rounds) > 1:
            yield loop
        for mark in loop.rounds:
            yield from _affine(mark.loops)


@dataclass(frozen=True)
class _Uses:
    """What the instructions of a trace read and write."""

    trace: Trace

    def of(self, number: int) -> tuple[list[Access], list[Access]]:
        """What an instruction reads, and what it writes."""
        reads: list[Access] = []
        writes: list[Access] = []
        for use in self.trace.instructions[number].uses():
            if isinstance(use.operand, Access):
                if use.role.is_read:
                    reads.append(use.operand)
                if use.role.is_write:
                    writes.append(use.operand)
        return reads, writes

    def line(self, number: int) -> str:
        """The line in which an instruction is written."""
        return self.trace.lines[self.trace.instructions[number].part or 0]

    @cached_property
    def by_tensor(self) -> Mapping[str, list[int]]:
        """Name of a tensor -> the instructions that touch it."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.trace.instructions):
            for name in {access.buffer.name for access in instruction.accesses()}:
                numbers[name].append(number)
        return numbers


@dataclass(frozen=True)
class _Written:
    """The last value of some elements."""

    #: The instruction that wrote it.
    number: int
    #: The first iteration that has a part in it, and the last.
    first: int
    last: int


@dataclass
class _Tile:
    """What a loop has written to a tensor, the latest last."""

    values: dict[Access, _Written] = field(default_factory=dict)
    #: The first iteration that has written to it; -1: none.
    since: int = -1

    def write(self, access: Access, written: _Written) -> None:
        self.values.pop(access, None)
        self.values[access] = written
        self.since = written.first if self.since < 0 else min(self.since, written.first)

    def read(self, access: Access) -> _Written | None:
        touched = _touched(access)
        values = reversed(self.values.items())
        return next((value for other, value in values if _touched(other).meets(touched)), None)


@lru_cache(maxsize=4096)
def _touched(access: Access) -> Footprint:
    return footprint(access, {})


def _in_loop(loop: LoopMarks, uses: _Uses) -> Iterator[Carried]:
    so_far = _SoFar(uses)
    ends = [*loop.rounds[1:], loop.end]
    for iteration, (begin, end) in enumerate(zip(loop.rounds, ends, strict=True)):
        for number in range(begin.instructions, end.instructions):
            value = so_far.from_earlier(iteration, number)
            if value is not None:
                what = f"reads what an earlier iteration has written in {uses.line(value.number)}"
                yield Carried(loop.line, uses.line(number), what)
                return
            so_far.write(iteration, number)
    yield from _used_afterwards(loop, so_far.overwritten, uses)


@dataclass
class _SoFar:
    """What a loop has written so far."""

    uses: _Uses
    tiles: dict[str, _Tile] = field(default_factory=lambda: defaultdict(_Tile))
    #: What several iterations have written, each over the one before -> the last to do so.
    overwritten: dict[Access, int] = field(default_factory=dict)

    def from_earlier(self, iteration: int, number: int) -> _Written | None:
        """What an instruction reads of an earlier iteration, and does not only add to."""
        reads, writes = self.uses.of(number)
        for access in reads:
            tile = self.tiles[access.buffer.name]
            if 0 <= tile.since < iteration and access not in writes:
                value = tile.read(access)
                if value is not None and value.first < iteration:
                    return value
        return None

    def write(self, iteration: int, number: int) -> None:
        """Notes what an instruction writes."""
        reads, writes = self.uses.of(number)
        for access in writes:
            tile, first = self.tiles[access.buffer.name], iteration
            if access in reads:
                before = tile.read(access)
                first = iteration if before is None else before.first
            elif not access.registers and self._overwrites(access, iteration, number):
                self.overwritten[access] = number
            tile.write(access, _Written(number, first, iteration))

    def _overwrites(self, access: Access, iteration: int, number: int) -> bool:
        """Whether an instruction overwrites what an earlier iteration wrote, perhaps with another
        value."""
        before = self.tiles[access.buffer.name].values.get(access)
        if before is None or before.last == iteration:
            return False
        instructions = self.uses.trace.instructions
        reads, _ = self.uses.of(number)
        return instructions[number] != instructions[before.number] or any(
            self.tiles[read.buffer.name].values for read in reads
        )


def _used_afterwards(
    loop: LoopMarks, overwritten: Mapping[Access, int], uses: _Uses
) -> Iterator[Carried]:
    """The first use of what several iterations have written, each over the one before."""
    for access, writer in overwritten.items():
        user = _user(access, writer, loop.end.instructions, uses)
        if user is not None:
            what = f"reads what several iterations have written in {uses.line(writer)}"
            if user == writer:
                what = "several iterations write to the same place of a result"
            yield Carried(loop.line, uses.line(user), what)
            return


def _user(access: Access, writer: int, end: int, uses: _Uses) -> int | None:
    """The instruction behind a loop that reads what `writer` has written there, or `writer` itself
    if it is a result; None: nothing needs it."""
    touched, numbers = _touched(access), uses.by_tensor[access.buffer.name]
    later = _Tile()
    for number in numbers[bisect_left(numbers, end) :]:
        reads, writes = uses.of(number)
        for read in reads:
            is_same = read.buffer == access.buffer and _touched(read).meets(touched)
            if is_same and later.read(read) is None:
                return number
        if access in writes:
            return None
        for write in writes:
            if write.buffer == access.buffer:
                later.write(write, _Written(number, 0, 0))
    return writer if access.buffer.kind in SHARED else None
