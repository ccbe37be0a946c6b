"""Scatters of single numbers: each element of the operand sees whether an index names it.

Transfers of single numbers go one after the other, some microseconds each; comparing a counter with
the indices takes a cycle for each pair, on all partitions, and joins what is around it. So are
gradients of cross-entropy and counts of classes made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import reducer
from neuronjax.lower.rewriter import Writer

_MOST_PLACES = 1 << 18
"""Places of an index up to which going through all of them is faster than one transfer."""
_MOST_PAIRS = 1 << 27
"""Pairs of a place and an index, each a cycle of one lane: about a millisecond."""
_INDICES = (np.dtype(np.int32), np.dtype(np.uint32))
_FLOAT32 = np.dtype(np.float32)
_SUMMED = (_FLOAT32, np.dtype(np.int32))
"""Types in which several updates of one place are added without rounding between."""


def scatter(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Updates without a window along the last dimension; the others are batches."""
    if not _is_plain(op):
        return None
    operand, indices, updates = op.operands
    (graph,) = op.regions
    is_set = graph.results == graph.parameters[1:]
    name = reducer(op) or _of_widened(graph)
    pairs = (*operand.shape, math.prod(updates.shape) // math.prod(operand.shape[:-1]))
    if pairs[-1] == 1:
        if reducer(op) is None and not is_set:
            return None
        new = _paired(writer, updates, pairs)
        new = new if is_set else writer.add(name or "", operand, new)
        return [writer.add("select", _named(writer, indices, pairs), new, operand)]
    wide = operand.dtype if reducer(op) else _FLOAT32
    if name != "add" or wide not in _SUMMED or math.prod(pairs) > _MOST_PAIRS:
        return None
    new = _paired(writer, writer.convert(updates, wide), pairs)
    added = writer.add("select", _named(writer, indices, pairs), new, writer.constant(0, new))
    total = writer.sum(added, (len(pairs) - 1,))
    total = writer.add("add", writer.convert(operand, wide), total)
    return [writer.convert(total, operand.dtype)]


def _of_widened(graph: Graph) -> str | None:
    """The operation of FP32 numbers that a region does on its two parameters, which is how the chip
    adds integers: exactly, up to 2^24."""
    operations = [op for op in graph.operations if op.name != "convert"]
    if len(operations) != 1 or operations[0].result.dtype != _FLOAT32:
        return None
    sources = {op.operands[0] for op in graph.operations if op.name == "convert"}
    inner = {value.producer for value in operations[0].operands}
    plain = len(graph.operations) == 4 and sources == {*graph.parameters, operations[0].result}
    return operations[0].name if plain and None not in inner else None


def _is_plain(op: Op) -> bool:
    """Whether an index is one number, and dimensions stand in their order: batches first."""
    if len(op.results) != 1:
        return False
    operand, indices, updates = op.operands
    numbers = op.attributes["scatter_dimension_numbers"]
    batches = tuple(range(len(operand.shape) - 1))
    return (
        indices.dtype in _INDICES
        and not numbers["update_window_dims"]
        and tuple(numbers["scattered_dims_to_operand_dims"]) == (len(batches),)
        and tuple(numbers["input_batching_dims"]) == batches
        and tuple(numbers["scatter_indices_batching_dims"]) == batches
        and numbers["index_vector_dim"] >= len(updates.shape)
        and 0 < operand.shape[-1] <= _MOST_PLACES
        and bool(math.prod(updates.shape))
    )


def _named(writer: Writer, indices: Value, pairs: Sequence[int]) -> Value:
    """Whether an index is the number of its place, for pairs [batches, places, indices]."""
    own = _paired(writer, indices, pairs)
    places = len(pairs) - 2
    counter = writer.add("iota", shape=own.shape, dtype=own.dtype, iota_dimension=places)
    return writer.compare("EQ", counter, own)


def _paired(writer: Writer, value: Value, pairs: Sequence[int]) -> Value:
    """Numbers [batches, indices] beside all places; a single index has no dimension of its own."""
    *batches, places, count = pairs
    kept = tuple(range(len(batches)))
    if count == 1:
        return writer.broadcast(writer.reshape(value, batches), (*batches, places), kept)
    flat = writer.reshape(value, (*batches, count))
    return writer.broadcast(flat, tuple(pairs), (*kept, len(batches) + 1))
