"""Operations on values without elements: there is nothing to read, and what they give is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.rewriter import Rewrite, Writer


def _of_nothing(rule: Rewrite) -> Rewrite:
    """The rule, for operations that have an operand without elements and a result with some."""

    def checked(writer: Writer, op: Op) -> Sequence[Value] | None:
        is_any = any(value.is_empty for value in op.operands)
        if not is_any or all(value.is_empty for value in op.results):
            return None
        return rule(writer, op)

    return checked


def concatenate(writer: Writer, op: Op) -> Sequence[Value]:
    """The operands that have elements."""
    present = [value for value in op.operands if not value.is_empty]
    if len(present) == 1:
        return present
    return [writer.add("concatenate", *present, shape=op.result.shape, **op.attributes)]


def zeros(writer: Writer, op: Op) -> Sequence[Value]:
    """The zeros that sums of nothing are."""
    return [writer.constant(0, op.result)]


def updated(writer: Writer, op: Op) -> Sequence[Value]:
    """What is updated, as it is."""
    return op.operands[: len(op.results)]


def initial(writer: Writer, op: Op) -> Sequence[Value]:
    """The initial values of reductions, the last operands."""
    firsts = op.operands[-len(op.results) :]
    pairs = zip(op.results, firsts, strict=True)
    return [writer.broadcast(first, result.shape, ()) for result, first in pairs]


def scatter(writer: Writer, op: Op) -> Sequence[Value] | None:
    """What is updated, as it is; an index that has no coordinates names the origin."""
    if op.operands[-1].is_empty:
        return updated(writer, op)
    return _at_origin(
        writer, op, "scatter_dimension_numbers", "scattered_dims_to_operand_dims",
        "input_batching_dims", op.operands[len(op.results)],
    )  # fmt: skip


def gather(writer: Writer, op: Op) -> Sequence[Value] | None:
    """An index that has no coordinates names the origin."""
    if op.operands[0].is_empty:
        return None
    return _at_origin(
        writer, op, "dimension_numbers", "start_index_map", "operand_batching_dims", op.operands[1]
    )


def _at_origin(
    writer: Writer, op: Op, attribute: str, indexed: str, batching: str, indices: Value
) -> Sequence[Value] | None:
    """The operation with indices of one coordinate, 0."""
    numbers: dict[str, Any] = op.attributes[attribute]
    rank = len(op.operands[0].shape)
    free = [dim for dim in range(rank) if dim not in numbers[batching]]
    if numbers[indexed] or not free:
        return None
    at = numbers["index_vector_dim"]
    shape = tuple(1 if dim == at else size for dim, size in enumerate(indices.shape))
    zero = writer.add(
        "constant", shape=shape, dtype=indices.dtype,
        value=np.broadcast_to(np.zeros((), indices.dtype), shape),
    )  # fmt: skip
    operands = [zero if value is indices else value for value in op.operands]
    attributes = {**op.attributes, attribute: {**numbers, indexed: (free[0],)}}
    specs = [value.spec for value in op.results]
    return writer.several(op.name, operands, specs, op.regions, attributes)


EMPTY: Mapping[str, Rewrite] = {
    "concatenate": _of_nothing(concatenate),
    "convolution": _of_nothing(zeros),
    "dot_general": _of_nothing(zeros),
    "dynamic_update_slice": _of_nothing(updated),
    "gather": _of_nothing(gather),
    "pad": _of_nothing(initial),
    "reduce": _of_nothing(initial),
    "reduce_window": _of_nothing(initial),
    "scatter": _of_nothing(scatter),
    "select_and_scatter": _of_nothing(initial),
}
"""Operation -> what it gives of nothing."""
