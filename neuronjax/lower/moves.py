"""Copies of several values at once."""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view


def move(scope: Scope, pairs: Sequence[tuple[View, View]]) -> None:
    """Copies views to views, all at once in effect: no source is overwritten before it is read."""
    todo = [(source, target) for source, target in pairs if not is_same(source, target)]
    while todo:
        read = [source.buffer.name for source, _ in todo]
        free = [move for move in todo if move[1].buffer.name not in read]
        if free:
            scope.copy(*free[0])
            todo.remove(free[0])
            continue
        source, target = todo.pop(0)
        spare = whole_view(scope.scratch(source.shape, source.buffer.dtype, "spare"), source.shape)
        scope.copy(source, spare)
        todo.append((spare, target))


def is_same(view: View, other: View) -> bool:
    """Whether two views are the same elements of a buffer in the same order."""
    a, b = view.normal, other.normal
    return (a.buffer, a.shape, a.strides, a.offset) == (b.buffer, b.shape, b.strides, b.offset)
