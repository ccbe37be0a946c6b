"""Instructions with something else for the variable of a loop about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from neuronjax.lower.write.rebuild import mapped
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, RegisterOffset
from neuronjax.program.program import Node
from neuronjax.program.records import altered


class Step(NamedTuple):
    """What stands for a loop's variable: `factor` times it, and `base`.

    `is_first` and `is_last`: whether this is among its first or last values while it is at its own.
    """

    variable: str
    factor: int
    base: int
    is_first: bool
    is_last: bool


def stepped(nodes: tuple[Node, ...], step: Step) -> tuple[Node, ...]:
    """Nodes with something else for a loop's variable."""
    return mapped(nodes, Instruction, lambda node: _instruction(node, step))


def _instruction(node: Instruction, step: Step) -> Instruction:
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        old = getattr(node, field.name)
        new = _value(old, step)
        if new is not old:
            changed[field.name] = new
    return altered(node, **changed) if changed else node


def _value(value: Any, step: Step) -> Any:
    rule = _RULES.get(type(value))
    return value if rule is None else rule(value, step)


def _affine(value: Affine, step: Step) -> Affine:
    coefficient = dict(value.terms).get(step.variable)
    if coefficient is None:
        return value
    distance = affine(step.base, **{step.variable: step.factor - 1})
    return value + distance * coefficient


def _access(value: Access, step: Step) -> Access:
    if step.variable not in value.variables:
        return value
    names = ("offset", "partition", "slot")
    changed = {name: _value(getattr(value, name), step) for name in names}
    if step.factor == 1:  # the loop stays, and begins with any slot
        slot: Affine = changed["slot"]
        changed["slot"] = Affine(slot.base % value.buffer.slots, slot.terms)
    return altered(value, **changed)


def _first(value: First, step: Step) -> First | bool:
    others = _others(value, step, step.is_first)
    return First(others) if others else others is not None


def _last(value: Last, step: Step) -> Last | bool:
    others = _others(value, step, step.is_last)
    return Last(others) if others else others is not None


def _others(value: First | Last, step: Step, holds: bool) -> tuple[str, ...] | None:
    """The variables that a flag still depends on; None: it is not set in any iteration."""
    if step.variable not in value.variables:
        return value.variables
    if not holds:
        return None
    return tuple(name for name in value.variables if step.factor or name != step.variable)


def _tuple(value: tuple[Any, ...], step: Step) -> tuple[Any, ...]:
    values = tuple(_value(entry, step) for entry in value)
    return value if all(a is b for a, b in zip(values, value, strict=True)) else values


_RULES: Mapping[type, Callable[[Any, Step], Any]] = {
    Affine: _affine,
    Access: _access,
    RegisterOffset: lambda value, step: dataclasses.replace(value, base=_affine(value.base, step)),
    First: _first,
    Last: _last,
    tuple: _tuple,
}
