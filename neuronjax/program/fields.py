"""The types that fields of instructions declare: what text may stand there."""

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
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def choices(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, else the type alone."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(choice for each in typing.get_args(hint) for choice in choices(each))
    return (hint,)


def leaves(hint: Any) -> tuple[type, ...]:
    """All plain types in a type: alternatives, and elements of tuples."""
    found: list[type] = []
    for choice in choices(hint):
        if typing.get_origin(choice) is tuple:
            inner = (each for each in typing.get_args(choice) if each is not Ellipsis)
            found += (leaf for each in inner for leaf in leaves(each))
        else:
            found.append(choice)
    return tuple(found)


def conforms(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type; a Boolean is no integer."""
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
    """What a field takes, for messages."""
    return " or ".join(dict.fromkeys(map(_describe, choices(hint))))


def _describe(choice: Any) -> str:
    if typing.get_origin(choice) is tuple:
        inner = (each for each in typing.get_args(choice) if each is not Ellipsis)
        return f"({', '.join(map(describe, inner))}, …)"
    if isinstance(choice, type) and issubclass(choice, enum.Enum):
        return f"one of {', '.join(each.value for each in choice)}"
    return "none" if choice is type(None) else str(choice.__name__)
