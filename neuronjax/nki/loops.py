"""Loops of a kernel: written out while it is traced, and then put together where they are uniform.

Python runs every iteration, so that indices are integers and any Python works. The rounds of a loop
whose instructions differ in nothing but addresses that advance by equal steps become one round of a
`Loop`, with the tiles that a round makes in turns. A first or last round that differs is peeled
off. What is not uniform stays written out; a note says why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.loop_marks import LoopMarks, Mark
from neuronjax.nki.refusal import checked
from neuronjax.nki.tracing import Trace, current, is_tracing
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction, operand_fields
from neuronjax.program.operand import Access, Buffer, Kind, Register, RegisterOffset
from neuronjax.program.program import Loop, Node


@dataclass(frozen=True)
class LoopRange:
    """`range` for loops of a kernel, which the trace is told of."""

    numbers: range
    #: Whether the kernel allows iterations in any order.
    is_affine: bool = False
    #: Whether it asks for iterations that are written out.
    is_static: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]

    def __iter__(self) -> Iterator[int]:
        if not is_tracing():
            yield from self.numbers
            return
        trace = current()
        marks = trace.begin_loop(self.is_affine, self.is_static)
        try:
            for number in self.numbers:
                trace.nest.begin_round(marks)
                yield number
            marks.is_complete = True
        finally:
            trace.nest.end(marks)


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


@checked("nki.language.static_range")
def static_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The same for a loop whose iterations are all written out.

    Raises as `loop_range` does.
    """
    return LoopRange(loop_range(start, stop, step).numbers, is_static=True)


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
    #: Loops about the present one that are written out.
    _written_out: int = 0
    #: Pairs of tiles, and whether they differ in nothing but their names.
    _alike: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Tile or register -> the last instruction that uses it.
        self._last: dict[str, int] = {}
        for place, instruction in enumerate(self.instructions):
            self._last |= dict.fromkeys(_names(instruction), place)

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
            if buffer.on_chip and (buffer.name in touched or buffer.name not in self._last)
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
        rounds = list(zip(loop.rounds, [*loop.rounds[1:], loop.end], strict=True))
        if len(rounds) == 1 or not self.slots or loop.is_static:
            return self._written(rounds, [f"{variable}_{number}_" for number in range(len(rounds))])
        reason: _NotUniform | None = None
        for first, last in _peeled(len(rounds)):
            noted = len(self.notes)
            try:
                uniform = self._uniform(loop, rounds[first:last], variable)
            except _NotUniform as error:
                reason = reason or error
                del self.notes[noted:]
                continue
            names = [f"{variable}_{number}_" for number in range(len(rounds))]
            return (
                *self._written(rounds[:first], names[:first]),
                *uniform,
                *self._written(rounds[last:], names[last:]),
            )
        if loop.iteration is None or not self._written_out:
            self.notes.append(f"{loop.line}: the loop is written out: {reason}.")
        self._written_out += 1
        nodes = self._written(rounds, [f"{variable}_{number}_" for number in range(len(rounds))])
        self._written_out -= 1
        return nodes

    def _written(self, rounds: Sequence[_Round], names: Sequence[str]) -> list[Node]:
        """The nodes of some rounds behind each other."""
        return [node for nodes in self._bodies(rounds, names) for node in nodes]

    def _bodies(self, rounds: Sequence[_Round], names: Sequence[str]) -> list[tuple[Node, ...]]:
        return [
            self._nodes(begin.instructions, end.instructions, begin.loops, name)
            for (begin, end), name in zip(rounds, names, strict=True)
        ]

    def _uniform(self, loop: LoopMarks, rounds: Sequence[_Round], variable: str) -> Sequence[Node]:
        """Some rounds as one loop, if they have instructions. ``_NotUniform``: they are none."""
        if not loop.is_complete:
            raise _NotUniform("it is left early")
        slots, last = min(len(rounds), self.slots), len(rounds) - 1
        tiles, registers = self._made(rounds)
        uniform = _Merging(variable, slots, range(len(rounds)), tiles, registers, self._alike)
        uniform.check([self.instructions[b.instructions : e.instructions] for b, e in rounds])
        # Rounds that advance by equal steps are told by the first two, and flags by the last.
        told = sorted({0, 1, last})
        merging = uniform.of_rounds(told)
        bodies = self._bodies([rounds[number] for number in told], [f"{variable}_"] * len(told))
        body = merging.merged(bodies, "the body")
        return (Loop(variable=variable, trips=len(rounds), body=body),) if body else ()

    def _made(
        self, rounds: Sequence[_Round]
    ) -> tuple[list[Mapping[str, int]], list[Mapping[str, int]]]:
        """Of every round, the tiles and the registers that it makes, and their numbers in it."""
        tiles: list[Mapping[str, int]] = []
        registers: list[Mapping[str, int]] = []
        for begin, end in rounds:
            made = self.trace.buffers[begin.buffers : end.buffers]
            if any(buffer.kind is not Kind.SCRATCH or not buffer.on_chip for buffer in made):
                raise _NotUniform("it creates tensors in HBM")
            own = self.trace.registers[begin.registers : end.registers]
            for names, what in ((made, "tile"), (own, "register")):
                if any(self._last.get(entry.name, 0) >= end.instructions for entry in names):
                    raise _NotUniform(f"a {what} is used after the iteration that creates it")
            tiles.append({buffer.name: number for number, buffer in enumerate(made)})
            registers.append({register.name: number for number, register in enumerate(own)})
        return tiles, registers


_Round = tuple[Mark, Mark]
"""Where a round begins and ends."""


def _peeled(rounds: int) -> list[tuple[int, int]]:
    """The first and the last round of what may be a loop: all, then all but some at its ends. Any
    two advance by equal steps, so there have to be three of these."""
    ends = [(0, rounds - 1), (1, rounds), (1, rounds - 1)]
    return [(0, rounds), *((first, last) for first, last in ends if last - first > 2)]


def _names(instruction: Instruction) -> Iterator[str]:
    """The tiles and registers that an instruction uses."""
    for use in instruction.uses():
        if isinstance(use.operand, Access):
            yield use.operand.buffer.name
            yield from (register.name for register in use.operand.registers)
        elif isinstance(use.operand, Register):
            yield use.operand.name


@dataclass(frozen=True)
class _Merging:
    """Makes one of what stands at the same place in rounds of a loop, `numbers` of them."""

    variable: str
    slots: int
    numbers: Sequence[int]
    #: Of every round: tile -> its number in it, and the same of registers.
    tiles: Sequence[Mapping[str, int]]
    registers: Sequence[Mapping[str, int]]
    alike: dict[tuple[str, str], bool]

    def of_rounds(self, numbers: Sequence[int]) -> _Merging:
        """The same for some of the rounds."""
        tiles = [self.tiles[number] for number in numbers]
        registers = [self.registers[number] for number in numbers]
        return dataclasses.replace(self, numbers=numbers, tiles=tiles, registers=registers)

    def check(self, rounds: Sequence[Sequence[Instruction]]) -> None:
        """``_NotUniform`` if the instructions of the rounds are none of one loop, whatever loops
        are within it."""
        if any(len(instructions) != len(rounds[0]) for instructions in rounds):
            raise _NotUniform("the body differs in length")
        for instructions in zip(*rounds, strict=True):
            self._check_instructions(instructions)

    def _check_instructions(self, instructions: Sequence[Instruction]) -> None:
        first = instructions[0]
        if any(
            type(other) is not type(first) or other.part != first.part for other in instructions
        ):
            raise _NotUniform("the body differs")
        for name in _plain_fields(type(first)):
            value = getattr(first, name)
            others = (getattr(other, name) for other in instructions)
            if any(other is not value and other != value for other in others):
                raise _NotUniform(f"{name} of {first.mnemonic} differs")
        for name in _FLAGS.intersection(first.__dataclass_fields__):
            inner = [getattr(other, name) for other in instructions[1:-1]]
            if any(flag != inner[0] for flag in inner):
                raise _NotUniform("matmul results accumulate differently")
        uses = [other.uses() for other in instructions]
        if any(len(own) != len(uses[0]) for own in uses):
            raise _NotUniform(f"the number of operands of {first.mnemonic} differs")
        for same in zip(*uses, strict=True):
            self._check_operands([use.operand for use in same], same[0].field, first.mnemonic)

    def _check_operands(self, values: Sequence[Any], name: str, mnemonic: str) -> None:
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise _NotUniform(f"{name} of {mnemonic} differs")
        what = f"{name} of {mnemonic}"
        if isinstance(first, Access):
            self._check_access(values, what)
        elif isinstance(first, Register):
            self._register(values, what)
        elif isinstance(first, Affine):
            self._check_steps(values, what)
        elif any(value != first for value in values):
            raise _NotUniform(f"{what} differs")

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
        if isinstance(first, Register):
            return self._register(values, what)
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
            is_flag = name in _FLAGS
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

    def _check_access(self, values: Sequence[Access], what: str) -> None:
        """``_NotUniform`` if only other things than addresses could make these one access."""
        first = values[0]
        if any(
            value.partitions != first.partitions
            or value.dims != first.dims
            or value.dtype != first.dtype
            for value in values
        ):
            raise _NotUniform(f"the shape of {what} differs")
        self._check_buffers([value.buffer for value in values], what)
        self._check_steps([value.partition for value in values], what)
        if isinstance(first.offset, Affine):
            self._check_steps([value.offset for value in values], what)
        else:
            self._offset([value.offset for value in values], what)

    def _access(self, values: Sequence[Access], what: str) -> Access:
        first = values[0]
        self._check_access(values, what)
        buffer, slot = first.buffer, first.slot
        is_own = buffer.name in self.tiles[0] and buffer.address is None
        if is_own and buffer.slots == 1 < self.slots:
            buffer = dataclasses.replace(buffer, slots=self.slots)
            slot = affine(0, **{self.variable: 1})
        return dataclasses.replace(
            first,
            buffer=buffer,
            slot=slot,
            partition=self._affine([value.partition for value in values], what),
            offset=self._offset([value.offset for value in values], what),
        )

    def _offset(self, values: Sequence[Affine | RegisterOffset], what: str) -> Any:
        first = values[0]
        if isinstance(first, Affine):
            return self._affine(values, what)
        others = [value for value in values if isinstance(value, RegisterOffset)]
        if any(value.stride != first.stride for value in others) or len(others) < len(values):
            raise _NotUniform(f"the address of {what} differs")
        register = self._register([value.register for value in others], what)
        base = self._affine([value.base for value in others], what)
        return RegisterOffset(register, first.stride, base)

    def _register(self, values: Sequence[Register], what: str) -> Register:
        """One of the kernel's, or what stands for those that the rounds make."""
        first = values[0]
        number = self.registers[0].get(first.name)
        for own, value in zip(self.registers, values, strict=True):
            is_same = value == first if number is None else own.get(value.name) == number
            if not is_same or value.limit != first.limit:
                raise _NotUniform(f"{what} differs")
        return first

    def _check_buffers(self, buffers: Sequence[Buffer], what: str) -> None:
        first = buffers[0]
        number = self.tiles[0].get(first.name)
        for tiles, buffer in zip(self.tiles, buffers, strict=True):
            if number is None:
                is_same = buffer is first or buffer == first
            else:
                is_same = tiles.get(buffer.name) == number and self._is_alike(buffer, first)
            if not is_same:
                raise _NotUniform(f"{what} is a different tensor in some iterations")

    def _is_alike(self, buffer: Buffer, other: Buffer) -> bool:
        """Whether two tiles differ in nothing but their names."""
        key = (buffer.name, other.name)
        known = self.alike.get(key) if buffer.slots == other.slots == 1 else None
        if known is None:
            known = all(getattr(buffer, name) == getattr(other, name) for name in _FORM)
            if buffer.slots == other.slots == 1:
                self.alike[key] = known
        return known

    def _check_steps(self, values: Sequence[Any], what: str) -> None:
        first = values[0]
        step = values[1].base - first.base
        for number, value in zip(self.numbers, values, strict=True):
            if (
                not isinstance(value, Affine)
                or value.base != first.base + number * step
                or value.terms != first.terms
            ):
                raise _NotUniform(f"the address of {what} does not advance by equal steps")

    def _affine(self, values: Sequence[Any], what: str) -> Affine:
        self._check_steps(values, what)
        first: Affine = values[0]
        step = values[1].base - first.base
        return first + affine(0, **{self.variable: step}) if step else first


@functools.cache
def _plain_fields(kind: Any) -> tuple[str, ...]:
    """The fields of an instruction that hold neither operands nor flags, nor its part."""
    operands = {name for name, _, _ in operand_fields(kind)}
    names = (entry.name for entry in dataclasses.fields(kind))
    return tuple(name for name in names if name not in {*operands, *_FLAGS, "part"})


_FLAGS = frozenset({"start", "stop"})
"""Fields that may differ in the first or the last round."""

_FORM = tuple(entry.name for entry in dataclasses.fields(Buffer) if entry.name != "name")


def _instructions(nodes: Sequence[Node]) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Loop):
            yield from _instructions(node.body)
        elif isinstance(node, Instruction):
            yield node
