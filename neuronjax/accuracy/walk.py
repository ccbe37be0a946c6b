"""Walks a program in the order of its text, and adds iteration numbers to its loops.

Needs a program without calls, and its MLIR context to be current.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from neuronjax.accuracy.library import Library
from neuronjax.accuracy.sites import Site
from neuronjax.hlo import module as hlo
from neuronjax.hlo.location import source_line
from neuronjax.hlo.structure import (
    BRANCHES,
    LOOP,
    extend_branches,
    extend_loop,
    inner_ops,
    set_yield,
    terminator,
)
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize.op_kinds import name_of


@dataclass(frozen=True)
class Place:
    """A position of the walk: the op's site, and the i32 iteration numbers of loops around it."""

    site: Site
    counters: tuple[Any, ...]


class Visitor(Protocol):
    """Visits the ops."""

    def op(self, op: Any, place: Place) -> None:
        """Visits an op without control flow; ops may be added after it."""

    def decision(self, value: Any, place: Place) -> None:
        """Visits a value that decides a loop or branch, at the insertion point."""

    def end(self, results: Sequence[Any], order: int) -> None:
        """Visits the results of main, at the insertion point."""


class Twins(Protocol):
    """Values that are carried through control flow in addition to the program's own."""

    def indices(self, op: Any) -> list[int]:
        """The results of a loop or branching op that have twins, by their numbers."""

    def of(self, value: Any) -> Any:
        """The twin of a value."""

    def pair(self, value: Any, twin: Any) -> None:
        """Registers the twin of a value that control flow made."""


class Walk:
    """A walk through a program, which shows its ops to a visitor."""

    def __init__(self, visitor: Visitor, library: Library, twins: Twins | None = None) -> None:
        self._visitor = visitor
        self._library = library
        self._twins = twins
        self._order = 0

    def through(self, module: ir.Module) -> None:
        """Passes every op of main to the visitor, in place."""
        block = hlo.main_function(module).regions[0].blocks[0]
        self._block(block, (), ())
        last = terminator(block)
        with ir.InsertionPoint(last), last.location:
            self._visitor.end(list(last.operands), self._next())

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _block(self, block: Any, loops: tuple[int, ...], counters: tuple[Any, ...]) -> None:
        for op in inner_ops(block):
            site = Site(self._next(), name_of(op), source_line(op), loops)
            place = Place(site, counters)
            if op.name == LOOP:
                self._loop(op, place)
            elif op.name in BRANCHES:
                self._branches(op, place)
            else:
                self._visitor.op(op, place)

    def _loop(self, op: Any, place: Place) -> None:
        own, pairs = len(op.results), self._indices(op)
        with ir.InsertionPoint(op), op.location:
            inits = self._twins_of(op.operands, pairs)
            op = extend_loop(op, [*inits, _zero()])
        condition, body = (region.blocks[0] for region in op.regions)
        for values in (condition.arguments, body.arguments, op.results):
            self._pair(values, pairs, own)
        last = own + len(pairs)
        loops = (*place.site.loops, place.site.order)
        for block in (condition, body):
            self._block(block, loops, (*place.counters, block.arguments[last]))
        site = Site(place.site.order, place.site.op, place.site.source, loops)
        with ir.InsertionPoint(terminator(condition)), op.location:
            inside = Place(site, (*place.counters, condition.arguments[last]))
            self._visitor.decision(terminator(condition).operands[0], inside)
        with ir.InsertionPoint(terminator(body)), op.location:
            for position, twin in enumerate(self._twins_of(terminator(body).operands, pairs), own):
                set_yield(body, position, twin)
            (after,) = self._library.call("increment", [body.arguments[last]], _increment)
            set_yield(body, last, after)

    def _branches(self, op: Any, place: Place) -> None:
        with ir.InsertionPoint(op), op.location:
            self._visitor.decision(op.operands[0], place)
        own, pairs = len(op.results), self._indices(op)
        twins = []
        for region in op.regions:
            block = region.blocks[0]
            self._block(block, place.site.loops, place.counters)
            with ir.InsertionPoint(terminator(block)), op.location:
                twins.append(self._twins_of(terminator(block).operands, pairs))
        op = extend_branches(op, [value.type for value in twins[0]], twins)
        self._pair(op.results, pairs, own)

    def _indices(self, op: Any) -> list[int]:
        return self._twins.indices(op) if self._twins else []

    def _twins_of(self, values: Sequence[Any], indices: list[int]) -> list[Any]:
        return [self._twins.of(values[index]) for index in indices] if self._twins else []

    def _pair(self, values: Sequence[Any], indices: list[int], first: int) -> None:
        for position, index in enumerate(indices, first):
            if self._twins:
                self._twins.pair(values[index], values[position])


def _zero() -> Any:
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get(np.zeros((), np.int32))).result


def _increment(values: list[Any]) -> list[Any]:
    unit = stablehlo.ConstantOp(ir.DenseElementsAttr.get(np.ones((), np.int32))).result
    return [stablehlo.AddOp(values[0], unit).result]
