"""Copies of several values at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view


class Move(NamedTuple):
    """A copy from one view to another, and the name scope whose time it takes."""

    source: View
    target: View
    name_scope: str = ""


def move(scope: Scope, moves: Iterable[Move]) -> None:
    """Copies views to views, all at once in effect: no source is overwritten before it is read."""
    todo = [move for move in moves if not is_same(move.source, move.target)]
    while todo:
        read = [move.source.buffer.name for move in todo]
        free = [move for move in todo if move.target.buffer.name not in read]
        if free:
            scope.copy(free[0].source, free[0].target, scope=free[0].name_scope)
            todo.remove(free[0])
            continue
        source, target, name_scope = todo.pop(0)
        spare = whole_view(scope.scratch(source.shape, source.buffer.dtype, "spare"), source.shape)
        scope.copy(source, spare, scope=name_scope)
        todo.append(Move(spare, target, name_scope))


def is_same(view: View, other: View) -> bool:
    """Whether two views are the same elements of a buffer in the same order."""
    a, b = view.normal, other.normal
    return (a.buffer, a.shape, a.strides, a.offset) == (b.buffer, b.shape, b.strides, b.offset)
