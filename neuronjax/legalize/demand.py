"""Which bits of a program's integers affect its results.

Errors of 32-bit arithmetic do no harm if only the low 32 bits are used afterwards, or if the number
is an index: no array has more than 2^31 elements along a dimension, so a larger index is out of
bounds in any case.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

from neuronjax.hlo.calls import CallGraph, callee_of, terminator
from neuronjax.jaxlib_api.mlir import OpOrView, ir
from neuronjax.legalize.emit import element_type


class Demand(enum.IntEnum):
    """Which bits of a number matter."""

    NONE = 0
    """None, or it is an index."""
    LOW = 1
    """The low 32."""
    FULL = 2


Needs = Iterable[tuple[ir.Value, Demand]]

_LOW_OF_LOW = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "and", "broadcast_in_dim", "concatenate", "multiply", "negate", "not", "or", "pad",
        "reshape", "reverse", "slice", "subtract", "transpose", "xor",
    )
)  # fmt: skip
"""Ops whose results' low bits depend only on the low bits of their operands."""
_SHORT = frozenset({"i2", "i4", "i8", "i16", "i32", "ui2", "ui4", "ui8", "ui16", "ui32"})
_EFFECTS = frozenset(
    f"stablehlo.{name}" for name in ("custom_call", "infeed", "outfeed", "recv", "send")
)


class Demands:
    """The demands on the values of a module."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._known: dict[ir.Value, Demand] = {}
        self._waiting: list[ir.Value] = []
        self._need_all(terminator(graph.functions[graph.main]).operands)
        for op, _ in graph.operations:
            if op.name in _EFFECTS:
                self._need_all(op.operands)
            elif op.name == "stablehlo.while":
                self._need_all(terminator(op, 0).operands)
            elif op.name in ("stablehlo.case", "stablehlo.if"):
                self._need_all(op.operands)
        while self._waiting:
            value = self._waiting.pop()
            for needed, demand in self._needs(value, self._known[value]):
                self._need(needed, demand)

    def of(self, op: ir.Operation) -> Demand:
        """The demand on the results of an op."""
        return max(
            (self._known.get(result, Demand.NONE) for result in op.results), default=Demand.NONE
        )

    def _need_all(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self._need(value, Demand.FULL)

    def _need(self, value: ir.Value, demand: Demand) -> None:
        if demand > self._known.get(value, Demand.NONE):
            self._known[value] = demand
            self._waiting.append(value)

    def _needs(self, value: ir.Value, demand: Demand) -> Needs:
        """The demands on other values that follow from a demand on a value of an op or block."""
        if isinstance(value, ir.BlockArgument):
            return self._needs_of_argument(value, demand)
        op, index = value.owner, ir.OpResult(value).result_number
        if op.name == "func.call":
            function = self._graph.functions[callee_of(op)]
            return [(terminator(function).operands[index], demand)]
        if op.name in _LOW_OF_LOW:
            return [(operand, demand) for operand in op.operands]
        return NEEDS.get(op.name, _everything)(op, index, demand)

    def _needs_of_argument(self, value: ir.BlockArgument, demand: Demand) -> Needs:
        parent, index = value.owner.owner.operation, value.arg_number
        if parent.name == "stablehlo.while":
            return _of_loop(parent, index, demand)
        if parent.name == "func.func":
            return [(call.operands[index], demand) for call in self._graph.calls_of(parent)]
        return []


def is_exact_in_low_bits(op: ir.Operation) -> bool:
    """Whether 32 bits are enough for the low 32 bits of an op's results."""
    return op.name in _LOW_OF_LOW or op.name in ("stablehlo.constant", "stablehlo.shift_left")


def _of_loop(loop: OpOrView, index: int, demand: Demand) -> Needs:
    body = loop.regions[1].blocks[0].arguments[index]
    condition = loop.regions[0].blocks[0].arguments[index]
    made = terminator(loop, 1).operands[index]
    return [(value, demand) for value in (loop.operands[index], made, body, condition)]


def _everything(op: ir.OpView, index: int, demand: Demand) -> Iterator[tuple[ir.Value, Demand]]:
    for operand in op.operands:
        yield operand, Demand.FULL
    for region in range(len(op.regions)):
        for value in terminator(op, region).operands:
            yield value, Demand.FULL


def _convert(op: ir.OpView, index: int, demand: Demand) -> Needs:
    short = element_type(op.results[0]) in _SHORT
    return [(op.operands[0], Demand.LOW if short else Demand.FULL)]


def _select(op: ir.OpView, index: int, demand: Demand) -> Needs:
    predicate, *values = op.operands
    return [(predicate, Demand.FULL), *((value, demand) for value in values)]


def _shift_left(op: ir.OpView, index: int, demand: Demand) -> Needs:
    return [(op.operands[0], demand), (op.operands[1], Demand.FULL)]


def _branches(op: ir.OpView, index: int, demand: Demand) -> Needs:
    return [(terminator(op, region).operands[index], demand) for region in range(len(op.regions))]


def _same_position(op: ir.OpView, index: int, demand: Demand) -> Needs:
    return [(op.operands[index], demand)]


def _data(count: int) -> Callable[[ir.OpView, int, Demand], Needs]:
    """The first operands are data, the others are indices."""
    return lambda op, index, demand: [(value, demand) for value in list(op.operands)[:count]]


def _scatter(op: ir.OpView, index: int, demand: Demand) -> Needs:
    count, operands = len(op.results), list(op.operands)
    for value in (*operands[:count], *operands[count + 1 :], *terminator(op).operands):
        yield value, Demand.FULL


NEEDS: dict[str, Callable[[ir.OpView, int, Demand], Needs]] = {
    "stablehlo.case": _branches,
    "stablehlo.convert": _convert,
    "stablehlo.dynamic_slice": _data(1),
    "stablehlo.dynamic_update_slice": _data(2),
    "stablehlo.gather": _data(1),
    "stablehlo.if": _branches,
    "stablehlo.optimization_barrier": _same_position,
    "stablehlo.scatter": _scatter,
    "stablehlo.select": _select,
    "stablehlo.shift_left": _shift_left,
    "stablehlo.while": _of_loop,
}
"""Op -> the demands of a result on operands; other ops demand all bits of all operands."""
