"""Short loops of element-wise operations, written out: a chain of all trips stays in SBUF.

As a loop, each trip would store what it carries and load it again, and what differs from trip to
trip, such as the distances by which Threefry rotates, would be no numbers that instructions have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain.elementwise import RULES
from neuronjax.lower.operations import VIEWS
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.trips import Trips


def unroll(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The operations of every trip, if they are few; else None."""
    trips = op.attributes.get("counted")
    if not isinstance(trips, Trips) or not trips.count:
        return None
    _, body = op.regions
    if trips.count * len(body.operations) > writer.tuning.unrolled_operations:
        return None
    if not all(map(_is_simple, body.operations)):
        return None
    carried: Sequence[Value] = op.operands
    for _ in range(trips.count):
        carried = _trip(writer, body, carried)
    return carried


def _is_simple(op: Op) -> bool:
    """Whether engines do it element by element, wherever its loop has come to."""
    name = op.name
    return not op.regions and name != "counted_slice" and (name in _OTHERS or name in RULES)


_OTHERS = VIEWS | {"constant", "iota"}


def _trip(writer: Writer, body: Graph, carried: Sequence[Value]) -> list[Value]:
    """The body's operations on what comes from the trip before; returns what the next one gets."""
    now = dict(zip(body.parameters, carried, strict=True))
    for op in body.operations:
        operands = tuple(now.get(value, value) for value in op.operands)
        results = tuple(Value(value.spec) for value in op.results)
        known = _known(op, operands)
        attributes = dict(op.attributes) if known is None else {"value": known}
        name, given = (op.name, operands) if known is None else ("constant", ())
        made = Op(name, given, results, attributes, (), op.source, op.mlir, op.scope)
        for value in results:
            value.producer = made
        writer.operations.append(made)
        now.update(zip(op.results, results, strict=True))
    return [now.get(value, value) for value in body.results]


def _known(op: Op, operands: Sequence[Value]) -> np.ndarray | None:
    """A part of constant integers, or the sum or difference of two numbers; else None."""
    rule = _PARTS.get(op.name)
    if rule is None and math.prod(op.result.shape) == 1:
        rule = _OF_NUMBERS.get(op.name)
    if rule is None:
        return None
    arrays = []
    for value in operands:
        made = value.producer
        if made is None or made.name != "constant" or not np.issubdtype(value.dtype, np.integer):
            return None
        arrays.append(made.attributes["value"])
    with np.errstate(over="ignore"):
        return rule(op, *arrays)


def _slice(op: Op, array: np.ndarray) -> np.ndarray:
    names = ("start_indices", "limit_indices", "strides")
    bounds = zip(*(op.attributes[name] for name in names), strict=True)
    return array[tuple(slice(*bound) for bound in bounds)]


_PARTS: Mapping[str, Callable[..., np.ndarray]] = {
    "reshape": lambda op, array: array.reshape(op.result.shape),
    "slice": _slice,
}
_OF_NUMBERS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": lambda _, left, right: left + right,
    "subtract": lambda _, left, right: left - right,
}
"""Operation -> its result, of NumPy arrays."""

UNROLLED = {"while": unroll}
"""Operation -> what it is in terms of others."""
