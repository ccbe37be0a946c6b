"""Scatters without transfers: each element of the operand sees whether an index names it.

Transfers of single numbers go one after the other, some microseconds each; comparing a counter with
the indices takes a cycle for each pair, on all partitions, and joins what is around it. So are
gradients of cross-entropy and counts of classes made. The Tensor engine adds up what is compared:
equal numbers by both halves of their indices, so that few comparisons tell many places apart, and
rows of few places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.formats import EXACT_INTEGERS
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import is_widening, number_of, peel, reducer
from neuronjax.lower.rates import Rates
from neuronjax.lower.rewriter import IS_USUAL, Writer, is_finite
from neuronjax.machine.specs import PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES

_INDICES = (np.dtype(np.int32), np.dtype(np.uint32))
_FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SUMMED = (_FLOAT32, np.dtype(np.int32))
"""Types in which several updates of one place are added without rounding between."""


def scatter(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Updates without a window along the last dimension, others are batches; or sums of rows."""
    units = _units(op)
    if units:
        return [_without_units(writer, op, units)]
    if not _is_plain(op, writer.tuning.scatter_places):
        return _rows(writer, op)
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
    if name != "add" or wide not in _SUMMED:
        return None
    equal = number_of(updates)
    if (
        equal is not None
        and np.isfinite(equal)
        and len(pairs) == 2
        and _is_counted(pairs, writer.tuning.counted_pairs)
    ):
        return [_counted(writer, op, equal)]
    if wide == _FLOAT32 and pairs[-2] > writer.tuning.scatter_sums:
        return None
    new = _paired(writer, writer.convert(updates, wide), pairs)
    added = writer.add("select", _named(writer, indices, pairs), new, writer.constant(0, new))
    total = writer.sum(added, (len(pairs) - 1,))
    total = writer.add("add", writer.convert(operand, wide), total)
    return [writer.convert(total, operand.dtype)]


def _units(op: Op) -> dict[int, int]:
    """Dimensions of the operand that have one element, and those of the updates that cover them:
    JAX writes a batch of one so."""
    operand, updates = op.operands[0], op.operands[-1]
    numbers = op.attributes["scatter_dimension_numbers"]
    apart = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    covered = [dim for dim in range(len(operand.shape)) if dim not in apart]
    return {
        dim: own
        for dim, own in zip(covered, numbers["update_window_dims"], strict=True)
        if len(op.results) == 1
        and dim not in numbers["scattered_dims_to_operand_dims"]
        and operand.shape[dim] == updates.shape[own] == 1
    }


def _without_units(writer: Writer, op: Op, units: Mapping[int, int]) -> Value:
    """The scatter without some dimensions of its operand and updates that have one element."""
    operand, indices, updates = op.operands
    kept = [dim for dim in range(len(operand.shape)) if dim not in units]
    own = [dim for dim in range(len(updates.shape)) if dim not in units.values()]
    numbers = dict(op.attributes["scatter_dimension_numbers"])
    for name in ("inserted_window_dims", "input_batching_dims", "scattered_dims_to_operand_dims"):
        numbers[name] = tuple(map(kept.index, numbers[name]))
    window = (dim for dim in numbers["update_window_dims"] if dim not in units.values())
    numbers["update_window_dims"] = tuple(map(own.index, window))
    flat = writer.reshape(operand, [operand.shape[dim] for dim in kept])
    new = writer.reshape(updates, [updates.shape[dim] for dim in own])
    made = writer.add(
        op.name, flat, indices, new, shape=flat.shape, dtype=operand.dtype, regions=op.regions,
        **{**op.attributes, "scatter_dimension_numbers": numbers},
    )  # fmt: skip
    return writer.reshape(made, operand.shape)


def _is_counted(pairs: Sequence[int], least: int) -> bool:
    return math.prod(pairs) >= least and max(pairs[-2:]) < EXACT_INTEGERS


def _counted(writer: Writer, op: Op, number: float) -> Value:
    """How often each place is named, times a number: products of the halves of indices."""
    operand, indices, _ = op.operands
    (places,) = operand.shape
    flat = writer.reshape(indices, (math.prod(indices.shape),))
    index = writer.add("bitcast_convert", flat, dtype=np.uint32)
    low = (places - 1).bit_length() // 2
    shift, mask = (writer.constant(at, index) for at in (low, (1 << low) - 1))
    great = writer.add("shift_right_logical", index, shift)
    small = writer.add("and", index, mask)
    sides = [
        _marked(writer, part, size)
        for part, size in ((great, -(-places // (1 << low))), (small, 1 << low))
    ]
    counts = writer.add(
        "dot_general", *sides, shape=(sides[0].shape[1], 1 << low), dtype=_FLOAT32,
        dot_dimension_numbers=_OVER_ROWS,
    )  # fmt: skip
    counts = writer.reshape(counts, (math.prod(counts.shape),))
    counts = writer.convert(writer.slice(counts, 0, 0, places), operand.dtype)
    times = writer.add("multiply", counts, writer.constant(number, counts))
    return writer.add("add", operand, times)


_OVER_ROWS = {
    "lhs_batching_dimensions": (),
    "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (0,),
    "rhs_contracting_dimensions": (0,),
}


def _rows(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Sums of rows as products with marks of their places, where that is faster and all are finite.

    Zeros times infinity or NaN would spread to other places: then transfers add up.
    """
    if len(op.results) != 1 or reducer(op) != "add" or not is_of_rows(op):
        return None
    operand, indices, updates = op.operands
    places, width = operand.shape[0], math.prod(operand.shape[1:])
    count = math.prod(updates.shape) // width
    tuning = writer.tuning
    if not tuning.counted_pairs <= count * places <= tuning.scatter_marks:
        return None
    if operand.dtype not in _FLOATS:
        return None
    if not _is_multiplied(places, width, updates, writer.rates):
        return None
    flat = writer.reshape(updates, (count, width))
    all_finite = is_finite(writer, flat)
    inner = writer.branch()
    index = inner.reshape(indices, (count,))
    marks = inner.convert(_marked(inner, index, places), updates.dtype)
    total = inner.add(
        "dot_general", marks, flat, shape=(places, width), dtype=_FLOAT32,
        dot_dimension_numbers=_OVER_ROWS,
    )  # fmt: skip
    total = inner.reshape(total, operand.shape)
    total = inner.convert(inner.add("add", inner.convert(operand, _FLOAT32), total), operand.dtype)
    other = writer.branch()
    added = other.add(
        op.name, *op.operands, shape=operand.shape, dtype=operand.dtype, regions=op.regions,
        **{**op.attributes, _BY_TRANSFERS: True},
    )  # fmt: skip
    branches = (Graph((), inner.operations, (total,)), Graph((), other.operations, (added,)))
    return writer.several("if", [all_finite], [op.result.spec], branches, {IS_USUAL: True})


def _is_multiplied(places: int, width: int, updates: Value, rates: Rates) -> bool:
    """Whether products add up 128 rows of updates faster than transfers do.

    Their marks, of two bytes, go through HBM. Cores share the products, not the transfers, which
    add to the same rows.
    """
    made, _ = peel(updates)
    is_narrow = made.producer is not None and is_widening(made.producer)
    passes = 4 if updates.dtype == _FLOAT32 and not is_narrow else 1
    columns = -(-places // PARTITIONS) * max(width, INSTRUCTION_CYCLES) * passes
    mark_ns = rates.element_ns + 2 * PARTITIONS * BFLOAT16.itemsize / rates.bytes_per_ns
    product_ns = columns * rates.column_ns + places * mark_ns
    return product_ns / rates.cores < rates.scatter_ns(width)


_FLOATS = (_FLOAT32, BFLOAT16, np.dtype(np.float16))
_BY_TRANSFERS = "by_transfers"
"""Attribute of what transfers are to add up."""


def is_of_rows(op: Op) -> bool:
    """Whether an index is the number of a row, which is updated as a whole."""
    operand, indices, updates = op.operands
    numbers = op.attributes["scatter_dimension_numbers"]
    window = tuple(numbers["update_window_dims"])
    first = len(updates.shape) - len(operand.shape) + 1
    return (
        _BY_TRANSFERS not in op.attributes
        and indices.dtype in _INDICES
        and tuple(numbers["inserted_window_dims"]) == (0,)
        and tuple(numbers["scattered_dims_to_operand_dims"]) == (0,)
        and not numbers["input_batching_dims"]
        and window == tuple(range(first, len(updates.shape)))
        and tuple(updates.shape[first:]) == tuple(operand.shape[1:])
        and numbers["index_vector_dim"] >= first
        and bool(math.prod(updates.shape))
    )


def _marked(writer: Writer, values: Value, places: int, dtype: Any = BFLOAT16) -> Value:
    """1 at the place that a number names, else 0: [numbers, places]."""
    shape = (*values.shape, places)
    numbers = writer.broadcast(writer.convert(values, _FLOAT32), shape, (0,))
    counter = writer.add("iota", shape=shape, dtype=_FLOAT32, iota_dimension=1)
    return writer.convert(writer.compare("EQ", numbers, counter), dtype)


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


def _is_plain(op: Op, most_places: int) -> bool:
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
        and 0 < operand.shape[-1] <= most_places
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
