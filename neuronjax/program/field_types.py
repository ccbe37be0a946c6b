"""The types that instructions' fields declare, against which the parser checks program text."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from neuronjax.program.instruction import Instruction


def field_hints(kind: type[Instruction]) -> dict[str, Any]:
    """Field -> the type it declares."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def choices(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; of any other type, the type itself."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(
            choice for alternative in typing.get_args(hint) for choice in choices(alternative)
        )
    return (hint,)


def leaves(hint: Any) -> tuple[type, ...]:
    """All plain types within a type: its alternatives, and the elements of tuples."""
    types_: list[type] = []
    for choice in choices(hint):
        if typing.get_origin(choice) is tuple:
            inner = (item for item in typing.get_args(choice) if item is not Ellipsis)
            types_ += (leaf for item in inner for leaf in leaves(item))
        else:
            types_.append(choice)
    return tuple(types_)


def conforms(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type; a Boolean is not an integer."""
    return any(_is(value, choice) for choice in choices(hint))


def _is(value: Any, choice: Any) -> bool:
    if typing.get_origin(choice) is not tuple:
        return type(value) is choice
    if not isinstance(value, tuple):
        return False
    inner = typing.get_args(choice)
    if inner[-1] is Ellipsis:
        inner = inner[:1] * len(value)
    return len(inner) == len(value) and all(map(conforms, value, inner))


def describe(hint: Any) -> str:
    """The values that a field accepts, for messages."""
    return " or ".join(dict.fromkeys(map(_describe, choices(hint))))


def _describe(choice: Any) -> str:
    if typing.get_origin(choice) is tuple:
        inner = (item for item in typing.get_args(choice) if item is not Ellipsis)
        return f"({', '.join(map(describe, inner))}, …)"
    if isinstance(choice, type) and issubclass(choice, enum.Enum):
        return f"one of {', '.join(member.value for member in choice)}"
    return "none" if choice is type(None) else str(choice.__name__)
