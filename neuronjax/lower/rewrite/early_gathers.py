"""Elements are picked before what is done to each of them: a loss needs one number of each row.

Of `log_softmax(x)[words]`, only the numbers of these words are computed, and never written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.operations import is_elementwise, is_splat
from neuronjax.lower.rewriter import Rewrite, Writer


def gather(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The operation on what is picked from its one operand that is no broadcast along the table."""
    table, _ = op.operands
    made = table.producer
    if made is None or not is_elementwise(made) or not made.operands:
        return None
    if math.prod(op.result.shape) * writer.tuning.early_gather_ratio > math.prod(table.shape):
        return None
    places = _places(op)
    if places is None or any(value.shape != table.shape for value in made.operands):
        return None
    seen = [_picked(writer, value, op, places) for value in made.operands]
    if seen.count(None) != 1:
        return None
    operands = [
        writer.add(
            op.name, source, op.operands[1], shape=op.result.shape, dtype=source.dtype,
            **op.attributes,
        ) if value is None else value
        for source, value in zip(made.operands, seen, strict=True)
    ]  # fmt: skip
    return [
        writer.add(
            made.name, *operands, shape=op.result.shape, dtype=table.dtype, **made.attributes
        )
    ]


def _places(op: Op) -> Mapping[int, int] | None:
    """Dimensions of the table that the result has -> its own, if single elements are picked along
    all others."""
    numbers, rank = op.attributes["dimension_numbers"], len(op.operands[0].shape)
    batching = tuple(numbers["operand_batching_dims"])
    if tuple(numbers["offset_dims"]) or len(batching) + len(numbers["start_index_map"]) != rank:
        return None
    vector = numbers["index_vector_dim"]
    of_indices = numbers["start_indices_batching_dims"]
    return {
        dim: place - (place > vector) for dim, place in zip(batching, of_indices, strict=True)
    }  # fmt: skip


def _picked(writer: Writer, value: Value, op: Op, places: Mapping[int, int]) -> Value | None:
    """What is picked of a value that is the same along all other dimensions; None: of any other."""
    shape, made = op.result.shape, value.producer
    if is_splat(value):
        assert made is not None
        number = made.attributes["value"].flat[0]
        return writer.constant(number, Value(TensorSpec(shape, value.dtype)))
    if made is None or made.name != "broadcast_in_dim":
        return None
    (source,), targets = made.operands, made.attributes["broadcast_dimensions"]
    wide = [(size, dim) for size, dim in zip(source.shape, targets, strict=True) if size > 1]
    if any(dim not in places for _, dim in wide):
        return None
    flat = writer.reshape(source, [size for size, _ in wide])
    order = [places[dim] for _, dim in wide]
    if order != sorted(order):
        return None
    return writer.broadcast(flat, shape, order)


REWRITES: Mapping[str, Rewrite] = {"gather": gather}
"""Operation -> what is done instead."""
