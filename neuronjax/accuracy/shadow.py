"""Adds a wide run to a program: every value gets a shadow, its counterpart in wider floats.

Control flow is shared: the chip's values decide loops and branches, and the observer is notified
where the shadows would have decided otherwise. Integers and Booleans that depend on floats (the
order of a sort, an argmax) have shadows too; all others are common to both runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from neuronjax.accuracy.library import Library
from neuronjax.accuracy.walk import Place, Walk
from neuronjax.accuracy.widen import Widening
from neuronjax.hlo import module as hlo
from neuronjax.hlo.structure import BRANCHES, LOOP, inner_ops, terminator
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import after
from neuronjax.legalize.op_kinds import computes, from_outside, is_float


class Observer(Protocol):
    """Receives the values, at an insertion point where it may write ops."""

    def result(self, place: Place, index: int, chip: Any, local: Any, shadow: Any) -> None:
        """Float result ``index`` of an op, of the wider op on the same operands, and its shadow."""

    def decision(self, place: Place, chip: Any, shadow: Any) -> None:
        """A value that decides a loop or branch, and its shadow."""

    def output(self, order: int, index: int, chip: Any, shadow: Any) -> None:
        """Float result ``index`` of the program."""


def insert_shadows(
    module: ir.Module, widening: Widening, library: Library, observer: Observer
) -> None:
    """Adds the wider computation and the observer's ops to ``module``, in place.

    Needs a program without calls, and its MLIR context to be current.
    """
    followed = _Followed()
    followed.block(hlo.main_function(module).regions[0].blocks[0])
    shadows = _Shadows(widening, library, observer, followed.values)
    Walk(shadows, library, twins=shadows).through(module)


class _Followed:
    """The values that may differ between the runs: floats, and what depends on them."""

    def __init__(self) -> None:
        self.values: set[Any] = set()

    def block(self, block: Any) -> None:
        for op in inner_ops(block):
            if op.name == LOOP:
                self._loop(op)
            elif op.name in BRANCHES:
                self._branches(op)
            elif not from_outside(op):
                some = any(self._differs(operand) for operand in op.operands)
                self.values.update(r for r in op.results if some or self._differs(r))

    def _differs(self, value: Any) -> bool:
        return value in self.values or is_float(value)

    def _loop(self, op: Any) -> None:
        condition, body = (region.blocks[0] for region in op.regions)
        before = -1
        while before != len(self.values):
            before = len(self.values)
            sources = zip(op.operands, terminator(body).operands, strict=True)
            for index, (init, carried) in enumerate(sources):
                if self._differs(init) or self._differs(carried):
                    of = (op.results, condition.arguments, body.arguments)
                    self.values.update(values[index] for values in of)
            self.block(condition)
            self.block(body)

    def _branches(self, op: Any) -> None:
        for region in op.regions:
            block = region.blocks[0]
            self.block(block)
            pairs = zip(op.results, terminator(block).operands, strict=True)
            self.values.update(result for result, value in pairs if self._differs(value))


class _Shadows:
    """The visitor of a walk, and its twins: the shadows."""

    def __init__(
        self, widening: Widening, library: Library, observer: Observer, followed: set[Any]
    ) -> None:
        self._widening = widening
        self._library = library
        self._observer = observer
        self._followed = followed
        self._shadow: dict[Any, Any] = {}

    def indices(self, op: Any) -> list[int]:
        return [i for i, result in enumerate(op.results) if result in self._followed]

    def pair(self, value: Any, twin: Any) -> None:
        self._shadow[value] = twin

    def of(self, value: Any) -> Any:
        """The shadow of a value, or the value itself if it is common to both runs."""
        if value not in self._shadow and self._widening.changes(value):
            owner = value.owner
            inside = isinstance(owner, ir.Block)
            start = ir.InsertionPoint.at_block_begin if inside else ir.InsertionPoint.after
            with start(owner), ir.Location.unknown():
                (self._shadow[value],) = self._library.call(
                    f"widen {value.type}", [value], self._widen
                )
        return self._shadow.get(value, value)

    def _widen(self, values: list[Any]) -> list[Any]:
        return [self._widening.value(value) for value in values]

    def op(self, op: Any, place: Place) -> None:
        if not any(result in self._followed for result in op.results):
            return
        order = place.site.order
        chip, wide = list(op.operands), [self.of(operand) for operand in op.operands]
        with after(op):
            shadows = self._library.call(
                f"op {order}", wide, lambda operands: self._widening.op(op, operands)
            )
            self._shadow.update(zip(op.results, shadows, strict=True))
            if not computes(op):
                return
            local = self._library.call(
                f"local {order}",
                chip,
                lambda operands: self._widening.op(op, self._widen(operands)),
            )
            for index, result in enumerate(op.results):
                if is_float(result):
                    self._observer.result(place, index, result, local[index], shadows[index])

    def decision(self, value: Any, place: Place) -> None:
        if value in self._shadow:
            self._observer.decision(place, value, self._shadow[value])

    def end(self, results: Sequence[Any], order: int) -> None:
        for index, value in enumerate(results):
            if is_float(value):
                self._observer.output(order, index, value, self.of(value))
