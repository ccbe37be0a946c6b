"""Loops of a kernel: written out while it is traced, and then put together where they are uniform.

Python runs every iteration, so that indices are integers and any Python works. The rounds of a loop
whose instructions differ in nothing but addresses that advance by equal steps become one round of a
`Loop`, with the tiles that a round makes in turns. What is not uniform stays written out; a note
says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.refusal import checked
from neuronjax.nki.tracing import LoopMarks, Trace, current, is_tracing
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Register
from neuronjax.program.program import Loop, Node


@dataclass(frozen=True)
class LoopRange:
    """`range` for loops of a kernel, which the trace is told of."""

    numbers: range
    #: Whether the kernel allows iterations in any order.
    is_affine: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]

    def __iter__(self) -> Iterator[int]:
        if not is_tracing():
            yield from self.numbers
            return
        trace = current()
        marks = trace.begin_loop(self.is_affine)
        try:
            for number in self.numbers:
                marks.begin_round(trace)
                yield number
            marks.is_complete = True
        finally:
            trace.end_loop(marks)


@checked("nki.language.sequential_range")
def loop_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The numbers of `range`, for a loop that may stay one.

    UnsupportedProgramError: a bound is no integer.
    """
    for bound in (start, 0 if stop is None else stop, step):
        if not hasattr(bound, "__index__"):
            raise UnsupportedProgramError(
                f"{current().line()}: {bound!r} cannot be a loop bound; bounds must be known when "
                "the kernel is traced. Pass integers."
            )
    return LoopRange(range(start) if stop is None else range(start, stop, step))


@checked("nki.language.affine_range")
def affine_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The same for a loop whose iterations do not depend on each other, but for sums.

    Raises as `loop_range` does.
    """
    return LoopRange(loop_range(start, stop, step).numbers, is_affine=True)


class _NotUniform(Exception):
    """Why the rounds of a loop are not one."""


@dataclass
class Rolling:
    """Puts loops of a trace together; its tiles have up to `slots` places each. Without slots, only
    loops that a register decides about are loops."""

    trace: Trace
    instructions: Sequence[Instruction]
    slots: int
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._used: dict[str, tuple[int, int]] = {}
        for place, instruction in enumerate(self.instructions):
            for access in instruction.accesses():
                first, _ = self._used.get(access.buffer.name, (place, place))
                self._used[access.buffer.name] = first, place

    def body(self) -> tuple[Node, ...]:
        """The kernel's nodes."""
        return self._nodes(0, len(self.instructions), self.trace.loops, "i")

    def buffers(self, body: Sequence[Node]) -> tuple[Buffer, ...]:
        """The tiles of a kernel with this body, and those that no instruction touches."""
        touched: dict[str, Buffer] = {}
        for instruction in _instructions(body):
            touched |= {access.buffer.name: access.buffer for access in instruction.accesses()}
        return tuple(
            touched.get(buffer.name, buffer)
            for buffer in self.trace.buffers
            if buffer.on_chip and (buffer.name in touched or buffer.name not in self._used)
        )

    def _nodes(
        self, first: int, last: int, loops: Sequence[LoopMarks], prefix: str
    ) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for number, loop in enumerate(loops):
            if loop.rounds:
                nodes += self.instructions[first : loop.rounds[0].instructions]
                about = self._loop if loop.trips is None else self._register_loop
                nodes += about(loop, f"{prefix}{number}")
                first = loop.end.instructions
        return (*nodes, *self.instructions[first:last])

    def _register_loop(self, loop: LoopMarks, prefix: str) -> Sequence[Node]:
        (begin,) = loop.rounds
        body = self._nodes(begin.instructions, loop.end.instructions, begin.loops, f"{prefix}_")
        assert loop.trips is not None
        return (Loop(variable=loop.variable, trips=loop.trips, body=body),)

    def _loop(self, loop: LoopMarks, variable: str) -> Sequence[Node]:
        ends = [*loop.rounds[1:], loop.end]

        def written(names: Sequence[str]) -> list[tuple[Node, ...]]:
            return [
                self._nodes(begin.instructions, end.instructions, begin.loops, name)
                for begin, end, name in zip(loop.rounds, ends, names, strict=True)
            ]

        count = len(loop.rounds)
        if count > 1 and self.slots:
            try:
                rounds = written([f"{variable}_"] * count)
                merging = _Merging(variable, min(count, self.slots), self._tiles(loop, ends))
                body = merging.merged(rounds, "the body")
                return (Loop(variable=variable, trips=count, body=body),) if body else ()
            except _NotUniform as reason:
                self.notes.append(f"{loop.line}: the loop is written out: {reason}.")
        names = [f"{variable}_{number}_" for number in range(count)]
        return [node for nodes in written(names) for node in nodes]

    def _tiles(self, loop: LoopMarks, ends: Sequence[Any]) -> list[dict[str, int]]:
        """Of every round, the tiles that it makes and their number in it."""
        if not loop.is_complete:
            raise _NotUniform("it is left early")
        tiles = []
        for begin, end in zip(loop.rounds, ends, strict=True):
            made = self.trace.buffers[begin.buffers : end.buffers]
            for buffer in made:
                if buffer.kind is not Kind.SCRATCH or not buffer.on_chip:
                    raise _NotUniform("it creates tensors in HBM")
                _, last = self._used.get(buffer.name, (0, 0))
                if last >= end.instructions:
                    raise _NotUniform("a tile is used after the iteration that creates it")
            tiles.append({buffer.name: number for number, buffer in enumerate(made)})
        return tiles


@dataclass(frozen=True)
class _Merging:
    """Makes one of what stands at the same place in all rounds of a loop."""

    variable: str
    slots: int
    #: Of every round: tile -> its number in it.
    tiles: Sequence[Mapping[str, int]]

    def merged(self, values: Sequence[Any], what: str) -> Any:
        """``_NotUniform`` if the values are no function of the loop's variable."""
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise _NotUniform(f"{what} differs")
        if isinstance(first, tuple):
            if any(len(value) != len(first) for value in values):
                raise _NotUniform(f"{what} differs in length")
            return tuple(self.merged(same, what) for same in zip(*values, strict=True))
        if isinstance(first, Access):
            return self._access(values, what)
        if isinstance(first, Affine):
            return self._affine(values, what)
        if isinstance(first, Instruction | Loop):
            return self._record(values)
        if any(value != first for value in values):
            raise _NotUniform(f"{what} differs")
        return first

    def _record(self, values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, Loop) and isinstance(first.trips, Register):
            raise _NotUniform("it contains a loop over a register")
        fields = {}
        for name in (entry.name for entry in dataclasses.fields(first) if entry.init):
            entries = [getattr(value, name) for value in values]
            what = f"{name} of {getattr(first, 'mnemonic', 'a loop')}"
            is_flag = name in ("start", "stop")
            fields[name] = self._flag(entries) if is_flag else self.merged(entries, what)
        return dataclasses.replace(first, **fields)

    def _flag(self, values: Sequence[Any]) -> Any:
        """A flag of all rounds, or of the first or last alone."""
        if all(value == values[0] for value in values):
            return values[0]
        for kind, chosen, others in (
            (First, values[0], values[1:]),
            (Last, values[-1], values[:-1]),
        ):
            if chosen is not False and not any(others):
                inner = () if chosen is True else chosen.variables
                if chosen is True or isinstance(chosen, kind):
                    return kind((*inner, self.variable))
        raise _NotUniform("matmul results accumulate differently")

    def _access(self, values: Sequence[Access], what: str) -> Access:
        first = values[0]
        if any(
            (value.partitions, value.dims, value.dtype)
            != (first.partitions, first.dims, first.dtype)
            for value in values
        ):
            raise _NotUniform(f"the shape of {what} differs")
        if not isinstance(first.offset, Affine):
            raise _NotUniform(f"a register is the address of {what}")
        buffer, slot = self._buffer([value.buffer for value in values], what), first.slot
        is_own = buffer.name in self.tiles[0] and buffer.address is None
        if is_own and buffer.slots == 1 < self.slots:
            buffer = dataclasses.replace(buffer, slots=self.slots)
            slot = affine(0, **{self.variable: 1})
        return dataclasses.replace(
            first,
            buffer=buffer,
            slot=slot,
            partition=self._affine([value.partition for value in values], what),
            offset=self._affine([value.offset for value in values], what),
        )

    def _buffer(self, buffers: Sequence[Buffer], what: str) -> Buffer:
        first = buffers[0]
        number = self.tiles[0].get(first.name)
        for tiles, buffer in zip(self.tiles, buffers, strict=True):
            is_same = buffer == first if number is None else tiles.get(buffer.name) == number
            if not is_same or dataclasses.replace(buffer, name=first.name) != first:
                raise _NotUniform(f"{what} is a different tensor in some iterations")
        return first

    def _affine(self, values: Sequence[Any], what: str) -> Affine:
        first = values[0]
        step = values[1].base - first.base
        for number, value in enumerate(values):
            if value.terms != first.terms or value.base != first.base + number * step:
                raise _NotUniform(f"the address of {what} does not advance by equal steps")
        return first + affine(0, **{self.variable: step})


def _instructions(nodes: Sequence[Node]) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Loop):
            yield from _instructions(node.body)
        elif isinstance(node, Instruction):
            yield node
