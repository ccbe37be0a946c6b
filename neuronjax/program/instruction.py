"""The base of all instructions: operands with roles, semaphores, and the engine that runs it.

An instruction is a frozen record with the parameters of its page in NKI ISA. The metadata of a
field that holds operands gives their role: READ, WRITE, UPDATE or `updates`. Everything generic
(dependences, allocation, liveness, text, verification) follows from the roles. A field holds one
operand, a tuple of them, or None.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine, First, Flag, Last
from neuronjax.program.operand import Access, Operand, Register, check_name
from neuronjax.program.records import altered


class Role(enum.Enum):
    """What an instruction does with an operand."""

    READ = "read"
    WRITE = "write"
    UPDATE = "read-modify-write"

    def __init__(self, value: str) -> None:
        self.is_read = value != "write"
        self.is_write = value != "read"


_ROLE = "role"
_UNLESS = "unless"

READ: Mapping[str, Any] = {_ROLE: Role.READ}
"""Metadata of a field whose operands are read."""
WRITE: Mapping[str, Any] = {_ROLE: Role.WRITE}
"""Metadata of a field whose operands are overwritten."""
UPDATE: Mapping[str, Any] = {_ROLE: Role.UPDATE}
"""Metadata of a field whose operands are read and written."""


def updates(*, unless: str) -> Mapping[str, Any]:
    """Metadata of a field that is updated, or overwritten while the flag `unless` is set."""
    return {_ROLE: Role.UPDATE, _UNLESS: unless}


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A counter that engines and DMA queues add to and wait for. It is 0 when a kernel starts."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class Wait:
    """The instruction begins once the semaphore has reached `count`."""

    semaphore: Semaphore
    count: Affine


@dataclass(frozen=True, slots=True)
class Signal:
    """Adds `by` to the semaphore once the results are in memory."""

    semaphore: Semaphore
    by: int = 1


@dataclass(frozen=True, slots=True)
class After:
    """The instruction begins once a stream has completed its part of kernels before this one.

    `stream` is an engine (``vector``), what an engine has started on a DMA queue (``sync_queue0``)
    or on a stream of collectives (``sync_collectives0``), with ``core1_`` before it if it is of the
    second physical core. `back` 1: all kernels before this one; 2: all but the last of them.

    Of the last of these kernels, the last `left` instructions of the stream need not be complete,
    as its text has them: an instruction in loops is complete with its last run. Where a register
    decides what a kernel runs, all of it is waited for.
    """

    stream: str
    back: int = 1
    left: int = 0

    def __post_init__(self) -> None:
        check_name(self.stream)


class Use(NamedTuple):
    """An operand of an instruction, with its field and role."""

    field: str
    role: Role
    operand: Operand
    #: While this flag is set, an update overwrites.
    unless: Flag


_use: Callable[[tuple[str, Role, Operand, Flag]], Use] = functools.partial(tuple.__new__, Use)
"""A use, made past the class in half the time."""


class Operands(NamedTuple):
    """What an instruction uses: operands with their roles, those that are in memory, and registers,
    those in addresses last."""

    uses: tuple[Use, ...]
    accesses: tuple[Access, ...]
    registers: tuple[Register, ...]


class _Known:
    """Storage for the operands of an instruction, which it keeps once it has listed them."""

    __slots__ = ("_operands",)
    _operands: Operands


_keep: Callable[[Any, Operands], None] = vars(_Known)["_operands"].__set__


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction(_Known):
    """One instruction of an engine, DMA queue or collective core.

    Instructions with a choice of engines have a field `engine`.
    """

    mnemonic: ClassVar[str]
    engines: ClassVar[tuple[Engine, ...]]
    page: ClassVar[str]

    waits: tuple[Wait, ...] = ()
    signals: tuple[Signal, ...] = ()
    #: What of kernels before has to be complete, as far as those may still run.
    after: tuple[After, ...] = ()
    #: Index of the part of its kernel to which it belongs.
    part: int = 0

    @property
    def engine(self) -> Engine | None:
        """The engine whose instruction stream it is in; None for the host."""
        return self.engines[0] if self.engines else None

    def uses(self) -> tuple[Use, ...]:
        """The declared operands, field by field."""
        return self._listed().uses

    def _listed(self) -> Operands:
        try:
            return self._operands
        except AttributeError:
            operands = _operands_of(self)
            _keep(self, operands)
            return operands

    def reads(self) -> tuple[Access | Register, ...]:
        """Memory and registers that it reads, including registers in addresses of operands."""
        uses, accesses, registers = self._listed()
        operands = [use.operand for use in uses if use.role.is_read]
        read = [operand for operand in operands if isinstance(operand, Access | Register)]
        if registers:
            read += [register for access in accesses for register in access.registers]
        return tuple(read)

    def writes(self) -> tuple[Access | Register, ...]:
        """Memory and registers that it writes."""
        operands = [use.operand for use in self._listed().uses if use.role.is_write]
        return tuple([operand for operand in operands if isinstance(operand, Access | Register)])

    def accesses(self) -> tuple[Access, ...]:
        """The instruction's accesses to memory, whatever their role."""
        return self._listed().accesses

    def registers(self) -> tuple[Register, ...]:
        """The registers that it reads or writes, those in addresses of operands last."""
        return self._listed().registers

    def variables(self) -> frozenset[str]:
        """Loop variables that it depends on, in operands, flags, fields and semaphores."""
        names: set[str] = set()
        kind: Any = type(self)
        for name in _fields_with_variables(kind):
            value = getattr(self, name)
            if type(value) not in _WITHOUT_VARIABLES:
                names.update(_variables(value))
        for use in self._listed().uses:
            if isinstance(use.operand, Access | Affine):
                names.update(use.operand.variables)
        return frozenset(names)

    def with_operands(self, change: Callable[[Operand], Operand]) -> Self:
        """This instruction with `change` applied to every operand."""
        changed: Mapping[str, Any] = {
            field: _mapped(getattr(self, field), change)
            for field, _, _ in operand_fields(type(self))
        }
        return altered(self, **changed)

    def with_semaphores(self, waits: tuple[Wait, ...], signals: tuple[Signal, ...]) -> Self:
        """This instruction with these waits and signals in place of its own."""
        return self._about(waits=waits, signals=signals)

    def with_after(self, after: tuple[After, ...]) -> Self:
        """This instruction with these `after` in place of its own."""
        return self._about(after=after)

    def in_group(self, **flags: Flag) -> Self:
        """This product with other flags of its group than `start`, which says what it does."""
        return self._about(**flags)

    def with_part(self, part: int) -> Self:
        """This instruction as one of another part of its kernel."""
        return self._about(part=part)

    def _about(self, **values: Any) -> Self:
        """This instruction, on the same operands, in other circumstances."""
        new = altered(self, **values)
        _keep(new, self._listed())
        return new


Kind = TypeVar("Kind", bound=type[Instruction])


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def instruction(
    mnemonic: str, engines: tuple[Engine, ...], *, page: str = ""
) -> Callable[[Kind], Kind]:
    """Makes a class the record of an instruction.

    `mnemonic` is its name in program text, `engines` are those it may run on, `page` is its public
    documentation, by default the page of NKI ISA with its name.
    """

    def make(kind: Kind) -> Kind:
        record: Any = dataclass(frozen=True, kw_only=True, slots=True)(kind)
        record.mnemonic, record.engines = mnemonic, engines
        record.page = page or f"NKI ISA {mnemonic}"
        return record

    return make


def _fields_of(kind: Any) -> tuple[tuple[str, Role, str | None], ...]:
    return tuple(
        (field.name, field.metadata[_ROLE], field.metadata.get(_UNLESS))
        for field in dataclasses.fields(kind)
        if _ROLE in field.metadata
    )


operand_fields: Callable[[Any], tuple[tuple[str, Role, str | None], ...]] = functools.cache(
    _fields_of
)
"""The fields of a type that hold operands: name, role, and the flag that makes an update
overwrite."""


def _operands_of(instruction: Instruction) -> Operands:
    uses: list[Use] = []
    accesses: list[Access] = []
    named: list[Register] = []
    addresses: list[Register] = []
    for field, role, name in operand_fields(type(instruction)):
        value = getattr(instruction, field)
        if value is None:
            continue
        unless: Flag = False if name is None else getattr(instruction, name)
        given = Role.WRITE if unless is True else role
        for operand in value if isinstance(value, tuple) else (value,):
            uses.append(_use((field, given, operand, unless)))
            if isinstance(operand, Access):
                accesses.append(operand)
                addresses += operand.registers
            elif isinstance(operand, Register):
                named.append(operand)
    registers = tuple(dict.fromkeys((*named, *addresses))) if named or addresses else ()
    return Operands(tuple(uses), tuple(accesses), registers)


def _mapped(value: Any, change: Callable[[Operand], Operand]) -> Any:
    if value is None:
        return None
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


_HAVE_NONE = ("signals", "after", "part")
_WITHOUT_VARIABLES = frozenset({bool, int, float, str, type(None)})


@functools.cache
def _fields_with_variables(kind: Any) -> tuple[str, ...]:
    """The fields beside operands that may depend on loop variables."""
    others = {*_HAVE_NONE, *(name for name, _, _ in operand_fields(kind))}
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in others)


def _variables(value: Any) -> Iterator[str]:
    """Loop variables in a field's value."""
    if isinstance(value, tuple):
        for item in value:
            yield from _variables(item)
    elif isinstance(value, Wait):
        yield from value.count.variables
    elif isinstance(value, Affine | First | Last | Access):
        yield from value.variables
