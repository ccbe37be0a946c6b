"""Sums over what a scatter to zeros has written: one number a row, which is known without a pass.

The gradient of a softmax adds up what comes back for each row, and of a loss only the word that was
to be said has something to give: zeros over a vocabulary would be made, stored and added up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import is_widening, number_of, reducer
from neuronjax.lower.rewriter import Writer


def sum_of_marked(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The number that is chosen in the place that an index names, if there is such a place."""
    value, zero = op.operands
    dims = op.attributes["dimensions"]
    if reducer(op) != "add" or number_of(zero) != 0 or len(dims) != 1:
        return None
    (dim,) = dims
    others = tuple(other for other in range(len(value.shape)) if other != dim)
    changes: list[Op] = []
    while value.producer is not None and _keeps_zeros(value.producer):
        changes.append(value.producer)
        (value,) = value.producer.operands
    row = _chosen(value, dim, others)
    if row is None:
        return None
    index, new = row
    size = writer.constant(value.shape[dim], index)
    is_less = writer.compare("LT", index, size)
    is_place = writer.add("and", writer.compare("GE", index, writer.constant(0, index)), is_less)
    total = writer.add("select", is_place, new, writer.constant(0, new))
    for change in reversed(changes):
        total = writer.add(change.name, total, dtype=change.result.dtype)
    return [writer.add("add", total, writer.constant(0, total))]  # no sum is -0


def _keeps_zeros(op: Op) -> bool:
    return op.name == "negate" or is_widening(op)


def _chosen(value: Value, dim: int, others: tuple[int, ...]) -> tuple[Value, Value] | None:
    """The index and the number of each row of select(index == place along `dim`, number, 0)."""
    made = value.producer
    if made is None or made.name != "select" or number_of(made.operands[2]) != 0:
        return None
    test, new = made.operands[0].producer, _without_zero(made.operands[1])
    if test is None or test.name != "compare" or test.attributes["comparison_direction"] != "EQ":
        return None
    counter, own = test.operands
    places = counter.producer
    if places is None or places.name != "iota" or places.attributes["iota_dimension"] != dim:
        return None
    index, number = (_of_rows(side, others) for side in (own, new))
    if index is None or number is None or not np.issubdtype(index.dtype, np.integer):
        return None
    return index, number


def _without_zero(value: Value) -> Value:
    """The other operand of a sum with zero, or the value itself."""
    made = value.producer
    if made is not None and made.name == "add" and number_of(made.operands[0]) == 0:
        return made.operands[1]
    return value


def _of_rows(value: Value, others: tuple[int, ...]) -> Value | None:
    """What is spread along a dimension, by all other ones; else None."""
    made = value.producer
    if made is None or made.name != "broadcast_in_dim":
        return None
    is_spread = tuple(made.attributes["broadcast_dimensions"]) == others
    same = made.operands[0].shape == tuple(value.shape[other] for other in others)
    return made.operands[0] if is_spread and same else None
