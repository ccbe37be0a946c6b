"""Products with repeated matrices: heads of queries that share a key are rows of one product.

Attention is often written with keys and values repeated for all heads of queries. Every copy would
be written out and multiplied by itself; the queries of one key are instead taken together. (Ainslie
et al., "GQA: Training Generalized Multi-Query Transformer Models", arXiv:2305.13245.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.rewriter import Writer
from neuronjax.machine.specs import PARTITIONS


class _Repeated(NamedTuple):
    """A tensor of which every entry along `axis` stands `copies` times in a row."""

    source: Value
    axis: int
    copies: int


def dot_general(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A product of which one operand is repeated along a batch dimension, without the copies."""
    numbers = op.attributes["dot_dimension_numbers"]
    for side, name in enumerate(("lhs", "rhs")):
        batch = tuple(numbers[f"{name}_batching_dimensions"])
        repeated = _repeated(op.operands[side])
        if repeated and repeated.axis in batch and _are_few(op, side, repeated.copies):
            return [_grouped(writer, op, side, repeated, batch.index(repeated.axis))]
    return None


def _are_few(op: Op, side: int, copies: int) -> bool:
    """Whether the rows for all copies of a matrix fit on the partitions, as those of a token do. Of
    more rows, the copies cost little beside the products, which are fused with what is between."""
    numbers = op.attributes["dot_dimension_numbers"]
    theirs = ("rhs", "lhs")[side]
    used = {*numbers[f"{theirs}_batching_dimensions"], *numbers[f"{theirs}_contracting_dimensions"]}
    sizes = enumerate(op.operands[1 - side].shape)
    return copies * math.prod(size for dim, size in sizes if dim not in used) <= PARTITIONS


def _repeated(value: Value) -> _Repeated | None:
    """What a reshaped broadcast repeats, if it is one axis."""
    reshaped = value.producer
    if reshaped is None or reshaped.name != "reshape":
        return None
    broadcast = reshaped.operands[0].producer
    if broadcast is None or broadcast.name != "broadcast_in_dim":
        return None
    (source,) = broadcast.operands
    wide = broadcast.result.shape
    dims = tuple(int(dim) for dim in broadcast.attributes["broadcast_dimensions"])
    whole = {dim for dim, size in zip(dims, source.shape, strict=True) if size == wide[dim]}
    new = [axis for axis, size in enumerate(wide) if axis not in whole and size > 1]
    if len(new) != 1 or new[0] == 0:
        return None
    (at,) = new
    axis = at - 1
    merged = (*wide[:axis], wide[axis] * wide[at], *wide[at + 1 :])
    if list(dims) != sorted(dims) or merged != tuple(value.shape):
        return None
    return _Repeated(source, axis, wide[at])


def _grouped(writer: Writer, op: Op, side: int, repeated: _Repeated, place: int) -> Value:
    """The product with the copies' part of the batch as a dimension of the other operand."""
    numbers = op.attributes["dot_dimension_numbers"]
    axis, copies = repeated.axis, repeated.copies
    sizes = [*op.operands[side].shape]
    sizes[axis] //= copies
    shared = writer.reshape(repeated.source, sizes)
    theirs = ("rhs", "lhs")[side]
    split = numbers[f"{theirs}_batching_dimensions"][place]
    apart = [*op.operands[1 - side].shape]
    apart[split : split + 1] = [sizes[axis], copies]
    other = writer.reshape(op.operands[1 - side], apart)
    shifted = {
        name: tuple(dim + (dim > split) if name.startswith(theirs) else dim for dim in dims)
        for name, dims in numbers.items()
    }
    used = [shifted[f"{theirs}_{kind}_dimensions"] for kind in ("batching", "contracting")]
    free = [dim for dim in range(len(apart)) if dim not in (*used[0], *used[1])]
    shape = [*op.result.shape]
    shape[place] //= copies
    first = len(used[0]) if side else len(shape) + 1 - len(free)
    at = first + free.index(split + 1)  # where the product has the copies
    shape.insert(at, copies)
    operands = (other, shared) if side else (shared, other)
    attributes = {**op.attributes, "dot_dimension_numbers": shifted}
    product = writer.add("dot_general", *operands, shape=shape, dtype=op.result.dtype, **attributes)
    order = [dim for dim in range(len(shape)) if dim != at]
    order.insert(place + 1, at)
    if at != place + 1:
        turned = [shape[dim] for dim in order]
        product = writer.add("transpose", product, shape=turned, permutation=tuple(order))
    return writer.reshape(product, op.result.shape)
