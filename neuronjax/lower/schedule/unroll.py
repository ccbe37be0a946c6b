"""Several iterations of a loop written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from neuronjax.lower.write.rebuild import rebuilt
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, RegisterOffset
from neuronjax.program.program import Loop, Node
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


def unrolled(loop: Loop, factor: int) -> tuple[Node, ...]:
    """A loop with `factor` iterations in one, or, with all of them, no loop any more.

    `factor` divides the loop's trips, a number.
    """
    assert isinstance(loop.trips, int)
    assert loop.trips % factor == 0
    if factor == 1:
        return (loop,)
    is_gone = factor == loop.trips
    body: list[Node] = []
    for index in range(factor):
        step = Step(
            variable=loop.variable,
            factor=0 if is_gone else factor,
            base=index,
            is_first=index == 0,
            is_last=index == factor - 1,
        )
        body += stepped(loop.body, step)
    if is_gone:
        return tuple(body)
    return (dataclasses.replace(loop, trips=loop.trips // factor, body=tuple(body)),)


def shortened(loop: Loop, count: int) -> tuple[Loop, tuple[Node, ...]]:
    """A loop without its last `count` iterations, which are fewer than its trips, and these."""
    assert isinstance(loop.trips, int)
    if not count:
        return loop, ()
    trips, name = loop.trips - count, loop.variable
    body = stepped(loop.body, Step(name, factor=1, base=0, is_first=True, is_last=False))
    rest: list[Node] = []
    for index in range(trips, loop.trips):
        is_last = index == loop.trips - 1
        rest += stepped(loop.body, Step(name, 0, index, is_first=False, is_last=is_last))
    return dataclasses.replace(loop, trips=trips, body=body), tuple(rest)


def stepped(nodes: tuple[Node, ...], step: Step) -> tuple[Node, ...]:
    """Nodes with something else for a loop's variable."""

    def change(node: Node) -> Node | None:
        return _instruction(node, step) if isinstance(node, Instruction) else None

    return rebuilt(nodes, change)


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
    return altered(value, **{name: _value(getattr(value, name), step) for name in names})


def _offset(value: RegisterOffset, step: Step) -> RegisterOffset:
    return dataclasses.replace(value, base=_affine(value.base, step))


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
    RegisterOffset: _offset,
    First: _first,
    Last: _last,
    tuple: _tuple,
}
