"""What stands at the same place in all rounds of a loop, as a function of the loop's variable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction, operand_fields
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset
from neuronjax.program.program import Loop


class NotUniformError(Exception):
    """Why the rounds of a loop are not one."""


@dataclass(frozen=True)
class Merging:
    """Makes one of what stands at the same place in rounds of a loop, `numbers` of them."""

    variable: str
    slots: int
    numbers: Sequence[int]
    #: Of every round: tile -> its number in it, and the same of registers.
    tiles: Sequence[Mapping[str, int]]
    registers: Sequence[Mapping[str, int]]
    alike: dict[tuple[str, str], bool]

    def of_rounds(self, numbers: Sequence[int]) -> Merging:
        """The same for some of the rounds."""
        tiles = [self.tiles[number] for number in numbers]
        registers = [self.registers[number] for number in numbers]
        return dataclasses.replace(self, numbers=numbers, tiles=tiles, registers=registers)

    def check(self, rounds: Sequence[Sequence[Instruction]]) -> None:
        """``NotUniformError`` if the instructions of the rounds are none of one loop, whatever
        loops are within it."""
        if any(len(instructions) != len(rounds[0]) for instructions in rounds):
            raise NotUniformError("the body differs in length")
        for instructions in zip(*rounds, strict=True):
            self._check_instructions(instructions)

    def _check_instructions(self, instructions: Sequence[Instruction]) -> None:
        first = instructions[0]
        if any(
            type(other) is not type(first) or other.part != first.part for other in instructions
        ):
            raise NotUniformError("the body differs")
        for name in _plain_fields(type(first)):
            value = getattr(first, name)
            others = (getattr(other, name) for other in instructions)
            if any(other is not value and other != value for other in others):
                raise NotUniformError(f"{name} of {first.mnemonic} differs")
        for name in _FLAGS.intersection(first.__dataclass_fields__):
            inner = [getattr(other, name) for other in instructions[1:-1]]
            if any(flag != inner[0] for flag in inner):
                raise NotUniformError("matmul results accumulate differently")
        uses = [other.uses() for other in instructions]
        if any(len(own) != len(uses[0]) for own in uses):
            raise NotUniformError(f"the number of operands of {first.mnemonic} differs")
        for same in zip(*uses, strict=True):
            self._check_operands([use.operand for use in same], same[0].field, first.mnemonic)

    def _check_operands(self, values: Sequence[Any], name: str, mnemonic: str) -> None:
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise NotUniformError(f"{name} of {mnemonic} differs")
        what = f"{name} of {mnemonic}"
        if isinstance(first, Access):
            self._check_access(values, what)
        elif isinstance(first, Register):
            self._register(values, what)
        elif isinstance(first, Affine):
            self._check_steps(values, what)
        elif any(value != first for value in values):
            raise NotUniformError(f"{what} differs")

    def merged(self, values: Sequence[Any], what: str) -> Any:
        """``NotUniformError`` if the values are no function of the loop's variable."""
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise NotUniformError(f"{what} differs")
        if isinstance(first, tuple):
            if any(len(value) != len(first) for value in values):
                raise NotUniformError(f"{what} differs in length")
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
            raise NotUniformError(f"{what} differs")
        return first

    def _record(self, values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, Loop) and isinstance(first.trips, Register):
            raise NotUniformError("it contains a loop over a register")
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
        raise NotUniformError("matmul results accumulate differently")

    def _check_access(self, values: Sequence[Access], what: str) -> None:
        """``NotUniformError`` if only other things than addresses could make these one access."""
        first = values[0]
        if any(
            value.partitions != first.partitions
            or value.dims != first.dims
            or value.dtype != first.dtype
            for value in values
        ):
            raise NotUniformError(f"the shape of {what} differs")
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
            raise NotUniformError(f"the address of {what} differs")
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
                raise NotUniformError(f"{what} differs")
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
                raise NotUniformError(f"{what} is a different tensor in some iterations")

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
                raise NotUniformError(f"the address of {what} does not advance by equal steps")

    def _affine(self, values: Sequence[Any], what: str) -> Affine:
        self._check_steps(values, what)
        first: Affine = values[0]
        step = values[1].base - first.base
        return first + affine(0, **{self.variable: step}) if step else first


def _fields_of(kind: Any) -> tuple[str, ...]:
    operands = {name for name, _, _ in operand_fields(kind)}
    names = (entry.name for entry in dataclasses.fields(kind))
    return tuple(name for name in names if name not in {*operands, *_FLAGS, "part"})


_plain_fields: Callable[[Any], tuple[str, ...]] = functools.cache(_fields_of)
"""The fields of an instruction that hold neither operands nor flags, nor its part."""

_FLAGS = frozenset({"start", "stop"})
"""Fields that may differ in the first or the last round."""

_FORM = tuple(entry.name for entry in dataclasses.fields(Buffer) if entry.name != "name")
