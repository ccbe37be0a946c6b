"""The instructions of a kernel as numbers, of which rounds of loops are compared.

Instructions with the same outline differ in nothing but addresses, flags of sums, and which tiles
and registers they use. Those are rows of numbers; rounds advance by equal steps if their rows do.
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.nki.loop_marks import Mark
from neuronjax.nki.tracing import Trace
from neuronjax.program.affine import Affine
from neuronjax.program.instruction import Instruction, operand_fields
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset

FLAGS = frozenset({"start", "stop"})
"""Fields that may differ in the first or the last round of a loop."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class NotUniformError(Exception):
    """Why the rounds of a loop are not one."""


@dataclass
class _Rows:
    """Numbers of instructions, some of each."""

    values: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])

    @functools.cached_property
    def _array(self) -> Numbers:
        return np.array(self.values, np.int64)

    def of(self, first: int, last: int, rounds: int) -> Numbers:
        """The numbers of instructions with the same outlines in each of the rounds, [rounds, n]."""
        return self._array[self.starts[first] : self.starts[last]].reshape(rounds, -1)


class Outlines:
    """The outlines of instructions in their order, and what differs between those with the same."""

    def __init__(self, trace: Trace, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self._buffers = {buffer.name: number for number, buffer in enumerate(trace.buffers)}
        self._registers = {entry.name: number for number, entry in enumerate(trace.registers)}
        self._numbers: dict[Hashable, int] = {}
        self._forms = {buffer.name: self._number(_form(buffer)) for buffer in trace.buffers}
        self._addresses, self._tiles, self._named, self._flags = (_Rows() for _ in range(4))
        self._outlines = np.array(list(map(self._outline, instructions)), np.int64)

    def check(self, rounds: Sequence[tuple[Mark, Mark]]) -> bool:
        """Whether flags differ in rounds behind each other. ``NotUniformError`` if these are none
        of one loop, whatever loops are within it."""
        first, last, count = rounds[0][0].instructions, rounds[-1][1].instructions, len(rounds)
        size = rounds[0][1].instructions - first
        if any(end.instructions - begin.instructions != size for begin, end in rounds):
            raise NotUniformError("the body differs in length")
        outlines = self._outlines[first:last].reshape(count, size)
        differs = (outlines != outlines[0]).any(0)
        if differs.any():
            other = self._instructions[first + int(differs.argmax())].mnemonic
            raise NotUniformError(f"{other} differs, or is not in every iteration")
        flags = self._flags.of(first, last, count)
        if (flags[1:-1] != flags[1]).any():
            raise NotUniformError("matmul results accumulate differently")
        tiles = [begin.buffers for begin, _ in rounds]
        registers = [begin.registers for begin, _ in rounds]
        self._refuse(
            self._tiles, first, _misplaced(self._tiles.of(first, last, count), tiles), _TENSOR
        )
        self._refuse(
            self._named, first, _misplaced(self._named.of(first, last, count), registers), _REGISTER
        )
        steps = np.diff(self._addresses.of(first, last, count), axis=0)
        self._refuse(self._addresses, first, (steps != steps[0]).any(0), _ADDRESS)
        return bool((flags != flags[0]).any())

    def _refuse(self, rows: _Rows, first: int, is_wrong: Flags, what: str) -> None:
        """``NotUniformError``, naming the first instruction that has something wrong, if any."""
        if is_wrong.any():
            place = bisect_right(rows.starts, rows.starts[first] + int(is_wrong.argmax())) - 1
            raise NotUniformError(what.format(self._instructions[place].mnemonic))

    def _outline(self, instruction: Instruction) -> int:
        kind = type(instruction)
        operands, others, flags = _fields(kind)
        outline = (
            kind,
            tuple([self._of(getattr(instruction, name)) for name in operands]),
            tuple([self._of(getattr(instruction, name)) for name in others]),
        )
        self._flags.values += [self._number(getattr(instruction, name)) for name in flags]
        for rows in (self._addresses, self._tiles, self._named, self._flags):
            rows.starts.append(len(rows.values))
        return self._number(outline)

    def _of(self, value: Hashable) -> Hashable:
        """The outline of a field; what it leaves out is added to the rows."""
        if isinstance(value, Access):
            self._tiles.values.append(self._buffers[value.buffer.name])
            return (
                self._forms[value.buffer.name],
                value.partitions,
                value.dims,
                value.dtype,
                self._of(value.partition),
                self._of(value.offset),
                value.slot,
            )
        if isinstance(value, Affine):
            self._addresses.values.append(value.base)
            return Affine, value.terms
        if isinstance(value, RegisterOffset):
            return RegisterOffset, value.stride, self._of(value.register), self._of(value.base)
        if isinstance(value, Register):
            self._named.values.append(self._registers[value.name])
            return Register, value.limit
        return tuple(map(self._of, value)) if isinstance(value, tuple) else value

    def _number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _misplaced(numbers: Numbers, begun: Sequence[int]) -> Flags:
    """Which of the tiles or registers in rows are neither the same in all rounds, nor what each
    round has made as the same one; rounds begin with so many of them."""
    own = numbers - np.array(begun, np.int64)[:, None]
    is_wrong: Flags = np.where(own[0] >= 0, own != own[0], numbers != numbers[0]).any(0)
    return is_wrong


_TENSOR = "{} has a different tensor in some iterations"
_REGISTER = "{} has a different register in some iterations"
_ADDRESS = "an address of {} does not advance by equal steps"


def _form(buffer: Buffer) -> Hashable:
    """A buffer but for its name."""
    return tuple([getattr(buffer, name) for name in _FORM])


_FORM = tuple(entry.name for entry in dataclasses.fields(Buffer) if entry.name != "name")


def _fields_of(kind: type[Instruction]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    operands = tuple(name for name, _, _ in operand_fields(kind))
    names = [entry.name for entry in dataclasses.fields(kind) if entry.name not in operands]
    others = tuple(name for name in names if name not in FLAGS)
    return operands, others, tuple(name for name in names if name in FLAGS)


_fields: Callable[[Any], tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]
_fields = functools.cache(_fields_of)
"""The fields of an instruction that hold operands, others, and flags of sums."""
