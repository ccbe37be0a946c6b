"""Parses values of fields in program text: accesses, affine functions, constants, enumerations."""

from __future__ import annotations

import enum
from collections import ChainMap
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from neuronjax.errors import MalformedProgramError, UnknownFormatError
from neuronjax.program.affine import ZERO, Affine, First, Last, affine
from neuronjax.program.element_types import element_type_named
from neuronjax.program.field_types import leaves
from neuronjax.program.instruction import After, Semaphore, Signal, Wait
from neuronjax.program.operand import Access, Buffer, Dim, Immediate, Register, RegisterOffset
from neuronjax.program.tokens import Cursor

_T = TypeVar("_T")
_SPECIAL = {"inf": float("inf"), "nan": float("nan")}


@dataclass(frozen=True)
class Names:
    """The declared names; inner declarations end with their block."""

    buffers: ChainMap[str, Buffer] = field(default_factory=ChainMap)
    registers: ChainMap[str, Register] = field(default_factory=ChainMap)
    semaphores: ChainMap[str, Semaphore] = field(default_factory=ChainMap)

    def inner(self) -> Names:
        """The names within a block."""
        return Names(
            self.buffers.new_child(), self.registers.new_child(), self.semaphores.new_child()
        )

    def find(self, cursor: Cursor, known: MutableMapping[str, _T], what: str) -> _T:
        """The declaration that the next word names. ProgramSyntaxError: there is none."""
        start = cursor.current
        name = cursor.word()
        if name not in known:
            cursor.fail(f"{what} {name!r} is not declared", start)
        return known[name]


def parse_value(cursor: Cursor, hint: Any, names: Names) -> Any:
    """Parses a value for a field of type `hint`; the caller checks that it has this type."""
    if cursor.sees("("):
        return _tuple(cursor, hint, names)
    if cursor.current.kind == "string":
        return cursor.string()
    if cursor.current.text in _MARKS:
        return _MARKS[cursor.current.text](cursor, names)
    if cursor.current.kind == "word":
        return _word(cursor, hint)
    return _number(cursor, hint)


def _tuple(cursor: Cursor, hint: Any, names: Names) -> tuple[Any, ...]:
    cursor.expect("(")
    items: list[Any] = []
    while not cursor.sees(")"):
        if items:
            cursor.expect(",")
        items.append(parse_value(cursor, hint, names))
    cursor.expect(")")
    return tuple(items)


def _word(cursor: Cursor, hint: Any) -> Any:
    """An enumeration's member, a flag, or a loop variable."""
    kinds = leaves(hint)
    word = cursor.current.text
    for kind in kinds:
        if issubclass(kind, enum.Enum) and word in {member.value for member in kind}:
            return kind(cursor.take().text)
    if word in _WORDS:
        cursor.take()
        return _WORDS[word](cursor)
    if Affine not in kinds:
        cursor.fail(f"{word!r} is not allowed here")
    return parse_affine(cursor)


def _variables(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect("(")
    variables: list[str] = []
    while not cursor.accept(")"):
        if variables:
            cursor.expect(",")
        variables.append(cursor.word("a loop variable"))
    return tuple(variables)


def _number(cursor: Cursor, hint: Any) -> int | Dim | Affine:
    kinds = leaves(hint)
    if Affine in kinds:
        return parse_affine(cursor)
    return _dim(cursor) if Dim in kinds else cursor.integer()


def _dim(cursor: Cursor) -> Dim:
    start = cursor.current
    stride = cursor.integer()
    cursor.expect(":")
    try:
        return Dim(stride, cursor.integer())
    except MalformedProgramError as error:
        cursor.fail(str(error).rstrip("."), start)


def parse_affine(cursor: Cursor) -> Affine:
    """An affine function such as ``128*i + 5``."""
    total = ZERO
    while True:
        if cursor.current.kind == "word":
            total += affine(**{cursor.word(): 1})
        else:
            factor = cursor.integer()
            variable = {cursor.word("a loop variable"): factor} if cursor.accept("*") else None
            total += factor if variable is None else affine(**variable)
        if not cursor.accept("+"):
            return total


def _offset(cursor: Cursor, names: Names) -> Affine | RegisterOffset:
    """An affine function, preceded by a register times a stride if there is one."""
    if not cursor.looks_like("-", "int", "*", "$") and not cursor.looks_like("int", "*", "$"):
        return parse_affine(cursor)
    stride = cursor.integer()
    cursor.expect("*")
    cursor.expect("$")
    register = names.find(cursor, names.registers, "register")
    return RegisterOffset(register, stride, parse_affine(cursor) if cursor.accept("+") else ZERO)


def _access(cursor: Cursor, names: Names) -> Access:
    start = cursor.take()
    values: dict[str, Any] = {"buffer": names.find(cursor, names.buffers, "buffer")}
    if cursor.accept("{"):
        values["slot"] = parse_affine(cursor)
        cursor.expect("}")
    if cursor.accept("<"):
        values["partition"] = parse_affine(cursor)
        cursor.expect(",")
        values["partitions"] = cursor.integer()
        cursor.expect(">")
    cursor.expect("[")
    values["offset"] = _offset(cursor, names)
    dims: list[Dim] = []
    while cursor.accept("," if dims else ";"):
        dims.append(_dim(cursor))
    cursor.expect("]")
    try:
        if cursor.accept("as"):
            values["dtype"] = element_type_named(cursor.word("an element type"))
        return Access(**values, dims=tuple(dims))
    except (MalformedProgramError, UnknownFormatError) as error:
        cursor.fail(str(error).rstrip("."), start)


def _immediate(cursor: Cursor, names: Names) -> Immediate:
    cursor.take()
    value = _signed_number(cursor)
    if not cursor.accept("as"):
        return Immediate(value)
    start = cursor.current
    try:
        return Immediate(value, element_type_named(cursor.word("an element type")))
    except UnknownFormatError as error:
        cursor.fail(str(error).rstrip("."), start)


def _signed_number(cursor: Cursor) -> int | float:
    sign = -1 if cursor.accept("-") else 1
    token = cursor.take()
    if token.kind == "int":
        return sign * cursor.number(token)
    if token.kind == "float":
        return sign * float(token.text)
    if token.text not in _SPECIAL:
        cursor.fail(f"expected a number, found {token.text!r}", token)
    return sign * _SPECIAL[token.text]


def _register(cursor: Cursor, names: Names) -> Register:
    cursor.take()
    return names.find(cursor, names.registers, "register")


def _event(cursor: Cursor, names: Names) -> Wait | Signal:
    cursor.take()
    semaphore = names.find(cursor, names.semaphores, "semaphore")
    if cursor.accept("+="):
        return Signal(semaphore, cursor.integer())
    cursor.expect(">=")
    return Wait(semaphore, parse_affine(cursor))


def _after(cursor: Cursor, names: Names) -> After:
    cursor.take()
    stream = cursor.word("a stream")
    cursor.expect("-")
    back = cursor.integer()
    return After(stream, back, cursor.integer() if cursor.accept("but") else 0)


_MARKS: dict[str, Callable[[Cursor, Names], Any]] = {
    "%": _access,
    "#": _immediate,
    "$": _register,
    "!": _event,
    "@": _after,
}
_WORDS: dict[str, Callable[[Cursor], Any]] = {
    "true": lambda _: True,
    "false": lambda _: False,
    "none": lambda _: None,
    "first": lambda cursor: First(_variables(cursor)),
    "last": lambda cursor: Last(_variables(cursor)),
}
