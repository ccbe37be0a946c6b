"""Copies of several values at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from neuronjax.hlo.graph import Value
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view


class Move(NamedTuple):
    """A copy of a value from one view to another."""

    source: View
    target: View
    value: Value


def move(scope: Scope, moves: Iterable[Move]) -> None:
    """Copies views to views, all at once in effect: no source is overwritten before it is read."""
    todo = [move for move in moves if not is_same(move.source, move.target)]
    while todo:
        read = [move.source.buffer.name for move in todo]
        free = [move for move in todo if move.target.buffer.name not in read]
        if free:
            scope.copy(free[0].source, free[0].target, value=free[0].value)
            todo.remove(free[0])
            continue
        source, target, value = todo.pop(0)
        spare = whole_view(scope.scratch(source.shape, source.buffer.dtype, "spare"), source.shape)
        scope.copy(source, spare, value=value)
        todo.append(Move(spare, target, value))


def is_same(view: View, other: View) -> bool:
    """Whether two views are the same elements of a buffer in the same order."""
    a, b = view.normal, other.normal
    return (a.buffer, a.shape, a.strides, a.offset) == (b.buffer, b.shape, b.strides, b.offset)
