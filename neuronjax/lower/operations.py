"""What the passes ask of operations and values: constants, views, plain reductions.

Broadcasts, permutations and most reshapes only change where a value is seen to lie: `peel` and
`root_of` look behind them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import IDENTITIES
from neuronjax.lower.values.storage import NARROW_FLOATS, is_native

VIEWS = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "counted_slice", "reverse",
                   "optimization_barrier"})  # fmt: skip
"""Operations that may only change where a value is seen to lie."""

PACKED = frozenset(
    map(np.dtype, (ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.int4, ml_dtypes.uint4))
)
"""Types of less than a byte: engines do not compute with them."""

Map = tuple[int | None, ...]
"""Dimension of a value -> dimension of a domain; None for size 1."""


Users = Mapping[Value, Sequence[Op | None]]
"""The operations that use a value; None: a region, or whoever gets results."""


def users_of(graph: Graph) -> Users:
    """The operations that use each value of a graph."""
    users: defaultdict[Value, list[Op | None]] = defaultdict(list)
    for op in graph.operations:
        for value in op.operands:
            users[value].append(op)
        for region in op.regions:
            for value in region.captured():
                users[value].append(None)
    for value in graph.results:
        users[value].append(None)
    return users


def peel(value: Value) -> tuple[Value, Map]:
    """What a value is a broadcast, permutation or trivial reshape of; dimension -> dimension."""
    relation: Map = tuple(axis if size != 1 else None for axis, size in enumerate(value.shape))
    while value.producer is not None:
        step = _step(value.producer)
        if step is None:
            break
        relation = tuple(None if axis is None else step[axis] for axis in relation)
        value = value.producer.operands[0]
    return value, relation


def _step(op: Op) -> Map | None:
    """Dimension of the result -> dimension of the operand; None if it is no such operation."""
    if op.name == "broadcast_in_dim":
        back = {
            target: axis
            for axis, target in enumerate(op.attributes["broadcast_dimensions"])
            if op.operands[0].shape[axis] != 1
        }
        return tuple(back.get(axis) for axis in range(len(op.result.shape)))
    if op.name == "transpose":
        return tuple(op.attributes["permutation"])
    if op.name == "reshape":
        source, target = op.operands[0].shape, op.result.shape
        kept = [axis for axis, size in enumerate(source) if size != 1]
        if [source[axis] for axis in kept] != [size for size in target if size != 1]:
            return None
        following = iter(kept)
        return tuple(next(following) if size != 1 else None for size in target)
    return None


def root_of(value: Value) -> Value:
    """The value whose memory a value is seen in, behind all views."""
    while value.producer is not None and value.producer.name in VIEWS:
        (index,) = (i for i, result in enumerate(value.producer.results) if result is value)
        value = value.producer.operands[index]
    return value


def is_constant(value: Value) -> bool:
    return value.producer is not None and value.producer.name == "constant"


def is_splat(value: Value) -> bool:
    """Whether a value is a constant with one number for all elements."""
    if not is_constant(value):
        return False
    array = value.producer.attributes["value"]  # type: ignore[union-attr]
    return array.size > 0 and (array.size == 1 or not any(array.strides))


_SAME_NUMBER = frozenset({"convert", "broadcast_in_dim", "reshape"})


def number_of(value: Value) -> Any:
    """The one number of a constant, behind views and conversions; None: there is none."""
    while value.producer is not None and value.producer.name in _SAME_NUMBER:
        value = value.producer.operands[0]
    return value.producer.attributes["value"].flat[0] if is_splat(value) else None  # type: ignore[union-attr]


def is_elementwise(op: Op) -> bool:
    """Whether engines do it element by element, on types they have."""
    if op.name not in elementwise.RULES or op.regions:
        return False
    if op.name == "bitcast_convert" and op.operands[0].dtype.itemsize != op.result.dtype.itemsize:
        return False
    if not all(is_native(value.dtype) for value in (*op.operands, *op.results)):
        return False
    if op.name == "retype":
        return True
    return not any(value.dtype in PACKED for value in (*op.operands, *op.results))


def is_widening(op: Op) -> bool:
    """Whether a conversion is from a short floating-point type to FP32."""
    if op.name != "convert":
        return False
    return op.result.dtype == np.float32 and op.operands[0].dtype.name in NARROW_FLOATS


def reducer(op: Op) -> str | None:
    """The operation that a region of one operation on its two parameters does."""
    (region,) = op.regions
    if len(region.operations) != 1 or len(region.parameters) != 2:
        return None
    (inner,) = region.operations
    plain = set(inner.operands) == set(region.parameters) and region.results == inner.results
    return inner.name if plain else None


def padding_of(convolution: Op) -> tuple[list[int], list[int]]:
    """The elements before and behind the input of a convolution, along all its dimensions."""
    low, high = ([0] * len(convolution.operands[0].shape) for _ in range(2))
    spatial = convolution.attributes["dimension_numbers"]["input_spatial_dimensions"]
    for axis, (before, after) in zip(spatial, convolution.attributes["padding"], strict=True):
        low[axis], high[axis] = int(before), int(after)
    return low, high


def is_row_reduction(op: Op) -> bool:
    """Whether `tensor_reduce` does it: one operand, a plain operator, no wrapping integers."""
    if op.name != "reduce" or len(op.results) != 1:
        return False
    name = reducer(op)
    if name not in IDENTITIES or not math.prod(op.operands[0].shape):
        return False
    dtype = op.result.dtype
    if dtype.name == "bool":
        return name in ("or", "and", "maximum", "minimum")
    return name not in ("or", "and") and elementwise.is_float(dtype) and dtype.itemsize > 1
