"""Forms of instructions: all of an instruction that checks of single instructions may look at.

Most instructions of a large kernel differ only in which tiles they use. They have one form, and
are checked once, on a model that has nothing but what its form says. Where a model breaks a rule,
the instructions themselves are checked, since messages name buffers and paths.

Of a buffer, a form has neither name nor bytes, and of its address only where in a bank of PSUM that
lies; of a register only the limit; of an instruction no semaphores. A check that needs more finds
nothing in the model, and so never complains.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any

from neuronjax.program.affine import Affine
from neuronjax.program.instruction import Instruction, operand_fields
from neuronjax.program.operand import Access, Buffer, Kind, Memory, Register, RegisterOffset
from neuronjax.program.program import Program
from neuronjax.program.records import altered
from neuronjax.program.rules.site import InstructionCheck, Site
from neuronjax.program.walk import Place

_LEFT_OUT: dict[str, Any] = {"waits": (), "signals": (), "after": (), "part": 0}
"""Fields of instructions that no form has, and what models have there."""
_NAME = "model"


class Forms:
    """Which of some checks the instructions of a program break, by their forms."""

    def __init__(self, program: Program, checks: Sequence[InstructionCheck]) -> None:
        self._program = program
        self._checks = checks
        self._broken: dict[Hashable, tuple[int, ...]] = {}
        self._bank = program.target.core.psum.bank_bytes
        #: Form of a buffer -> its number, and identity of a buffer -> that of its form.
        self._forms: dict[Hashable, int] = {}
        self._numbers: dict[int, int] = {}

    def broken(self, place: Place, instruction: Instruction) -> tuple[int, ...]:
        """The indices of the checks that instructions of this form break."""
        kind: Any = type(instruction)
        operands, others = _fields(kind)
        form = (
            kind,
            others(instruction),
            tuple([self._operand(getattr(instruction, name)) for name in operands]),
            tuple([(loop.variable, loop.most_trips) for loop in place.loops]),
        )
        broken = self._broken.get(form)
        if broken is None:
            site = Site(self._program, _outline(place), self._model(instruction))
            broken = tuple(
                index for index, check in enumerate(self._checks) if any(check.of_site(site))
            )
            self._broken[form] = broken
        return broken

    def _operand(self, value: Any) -> Hashable:
        """The form of an operand, or of several."""
        if isinstance(value, Access):
            offset = value.offset
            return (
                self._number(value.buffer),
                value.partitions,
                _terms(value.partition),
                _terms(offset) if isinstance(offset, Affine) else _dynamic(offset),
                tuple([(dim.stride, dim.size) for dim in value.dims]),
                _terms(value.slot),
                value.dtype,
            )
        if isinstance(value, tuple):
            return tuple(map(self._operand, value))
        return (Register, value.limit) if isinstance(value, Register) else value

    def _number(self, buffer: Buffer) -> int:
        number = self._numbers.get(id(buffer))
        if number is None:
            form = (
                buffer.memory,
                buffer.dtype,
                buffer.shape,
                buffer.partition,
                buffer.slots,
                buffer.slot_stride,
                buffer.data is None,
                self._address(buffer),
            )
            number = self._forms.setdefault(form, len(self._forms))
            self._numbers[id(buffer)] = number
        return number

    def _address(self, buffer: Buffer) -> int | None:
        if buffer.memory is not Memory.PSUM or buffer.address is None:
            return None
        return buffer.address % self._bank

    def _model(self, instruction: Instruction) -> Instruction:
        return altered(instruction.with_operands(self._model_operand), **_LEFT_OUT)

    def _model_operand(self, operand: Any) -> Any:
        if isinstance(operand, Register):
            return _model_register(operand)
        if not isinstance(operand, Access):
            return operand
        offset = operand.offset
        if isinstance(offset, RegisterOffset):
            offset = altered(offset, register=_model_register(offset.register))
        return altered(operand, buffer=self._model_buffer(operand.buffer), offset=offset)

    def _model_buffer(self, buffer: Buffer) -> Buffer:
        return altered(
            buffer,
            name=_NAME,
            kind=Kind.SCRATCH,
            address=self._address(buffer),
            data=None if buffer.data is None else b"",
        )


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """The names of an instruction's fields that hold operands, and what reads all others."""
    operands = tuple(name for name, _, _ in operand_fields(kind))
    names = (field.name for field in dataclasses.fields(kind))
    others = [name for name in names if name not in operands and name not in _LEFT_OUT]
    return operands, attrgetter("mnemonic", *others)


def _terms(value: Affine) -> Hashable:
    return (value.base, value.terms) if value.terms else value.base


def _dynamic(offset: RegisterOffset) -> Hashable:
    return offset.register.limit, offset.stride, _terms(offset.base)


def _model_register(register: Register) -> Register:
    return Register(_NAME, register.limit)


def _outline(place: Place) -> Place:
    """The loops about a place, without what is in them."""
    return Place(_NAME, tuple(altered(loop, body=()) for loop in place.loops))
