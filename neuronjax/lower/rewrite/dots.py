"""Products without free dimensions: of a vector with another, or of many rows with as many others.

A product of two vectors fills one column of the Tensor engine's array, an instruction for every 128
numbers. Vector multiplies and adds a whole row in one instruction, each partition a row of its own;
of a single vector it does so on one partition, unless the vector is long enough to be spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import number_of
from neuronjax.lower.rewriter import Writer


def rows_with_rows(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Multiplied element by element and added up in FP32, as the Tensor engine does."""
    left, right = op.operands
    numbers = op.attributes["dot_dimension_numbers"]
    batch = tuple(numbers["lhs_batching_dimensions"])
    contracted = tuple(numbers["lhs_contracting_dimensions"])
    others = (*numbers["rhs_batching_dimensions"], *numbers["rhs_contracting_dimensions"])
    rank = len(batch) + len(contracted)
    if {len(left.shape), len(right.shape)} != {rank}:
        return None
    if not all(map(elementwise.is_float, (left.dtype, right.dtype, op.result.dtype))):
        return None
    count = math.prod(left.shape[dim] for dim in contracted)
    if math.prod(op.result.shape) == 1 and count < writer.tuning.spread_vector:
        return None
    right = writer.transpose(
        right,
        [other for _, other in sorted(zip((*batch, *contracted), others, strict=True))],
    )
    wide = [writer.convert(value, np.float32) for value in (left, right)]
    total = writer.sum(writer.add("multiply", *wide), sorted(contracted))
    total = writer.transpose(total, [sorted(batch).index(dim) for dim in batch])
    return [writer.convert(total, op.result.dtype)]


def sum_of_squares(writer: Writer, op: Op, square: Op) -> Sequence[Value] | None:
    """The sum of `square`, of all numbers of a tensor, as the product of a vector with itself."""
    value = square.operands[0]
    count = math.prod(value.shape)
    if square.operands != (value, value) or value.dtype != np.float32:
        return None
    if (
        not writer.tuning.squared_vector <= count < writer.tuning.spread_vector
        or number_of(op.operands[1]) != 0
    ):
        return None
    flat = writer.reshape(value, (count,))
    numbers = {
        "lhs_batching_dimensions": (),
        "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (0,),
        "rhs_contracting_dimensions": (0,),
    }
    total = writer.add("dot_general", flat, flat, shape=(), dot_dimension_numbers=numbers)
    return [writer.reshape(total, op.result.shape)]
