"""Loops of `nl.affine_range` in which an iteration needs what an earlier one has written.

The compiler may change the order of such iterations; sums that every iteration adds to are allowed
(NKI language, affine_range). Here they keep their order, so values alone do not show the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.nki.trace import LoopMarks, Trace
from neuronjax.program.footprint import Footprint, footprint
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access


@dataclass(frozen=True)
class Carried:
    """What a loop hands from one iteration to the next."""

    loop: str
    #: The line that reads, and the one that wrote before.
    reads: str
    writes: str

    def __str__(self) -> str:
        return (
            f"{self.reads}: reads what an earlier iteration of nl.affine_range ({self.loop}) has "
            f"written in {self.writes}, but iterations may run in any order; use "
            "nl.sequential_range"
        )


def carried(trace: Trace) -> list[Carried]:
    """The first such place of every loop."""
    ages = {buffer.name: age for age, buffer in enumerate(trace.buffers)}
    return [place for loop in _affine(trace.loops) for place in _in_loop(loop, trace, ages)]


def _affine(loops: Sequence[LoopMarks]) -> Iterator[LoopMarks]:
    for loop in loops:
        if loop.is_affine and len(loop.rounds) > 1:
            yield loop
        for mark in loop.rounds:
            yield from _affine(mark.loops)


@dataclass
class _Written:
    """The last value of some elements: the first iteration that has a part in it."""

    touched: Footprint
    first: int
    line: str


@dataclass
class _Tile:
    """What a loop has written to a tensor that is older than it, the latest last."""

    values: dict[Access, _Written] = field(default_factory=dict)

    def write(self, access: Access, written: _Written) -> None:
        self.values.pop(access, None)
        self.values[access] = written

    def read(self, access: Access) -> _Written | None:
        touched = footprint(access, {})
        values = reversed(self.values.values())
        return next((value for value in values if value.touched.meets(touched)), None)


def _in_loop(loop: LoopMarks, trace: Trace, ages: Mapping[str, int]) -> Iterator[Carried]:
    """`ages` are the numbers of all buffers."""
    begun = loop.rounds[0].buffers
    tiles: dict[str, _Tile] = {}
    ends = [*loop.rounds[1:], loop.end]
    for number, (begin, end) in enumerate(zip(loop.rounds, ends, strict=True)):
        for instruction in trace.instructions[begin.instructions : end.instructions]:
            reads, writes = _accesses(instruction, ages, begun)
            line = trace.lines[instruction.part or 0]
            for access in reads:
                value = (
                    tiles[access.buffer.name].read(access) if access.buffer.name in tiles else None
                )
                if value is not None and value.first < number and access not in writes:
                    yield Carried(loop.line, line, value.line)
                    return
            for access in writes:
                tile = tiles.setdefault(access.buffer.name, _Tile())
                before = tile.read(access) if access in reads else None
                first = number if before is None else before.first
                tile.write(access, _Written(footprint(access, {}), first, line))


def _accesses(
    instruction: Instruction, ages: Mapping[str, int], begun: int
) -> tuple[list[Access], list[Access]]:
    """What it reads and writes of tensors of an age below `begun`, older than a loop."""
    reads: list[Access] = []
    writes: list[Access] = []
    for use in instruction.uses():
        operand = use.operand
        if isinstance(operand, Access) and ages[operand.buffer.name] < begun:
            if use.role.is_read:
                reads.append(operand)
            if use.role.is_write:
                writes.append(operand)
    return reads, writes
