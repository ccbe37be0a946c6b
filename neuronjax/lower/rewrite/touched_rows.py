"""Sums of rows in a table of a narrow type: only the rows that indices name are converted.

The chip adds in FP32 and rounds once, so a table is widened, added to, and rounded. Few rows of a
large one change. They are added up in a table of their own, with a row for each update, and take
the places of the old ones afterwards. Updates of the same row have to meet there: each leaves its
number in a column as long as the large table, and takes the number that stays there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.operations import is_widening, number_of, reducer
from neuronjax.lower.rewrite.scatters import is_of_rows
from neuronjax.lower.rewriter import Context, Writer
from neuronjax.lower.trips import uses_of
from neuronjax.machine.specs import PARTITIONS

_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)


def with_touched_rows(graph: Graph, context: Context) -> None:
    """Has sums of rows in narrow tables made apart, where few rows change; in place."""
    uses = uses_of(graph)
    operations: list[Op] = []
    for op in graph.operations:
        operations += _rounded(op, uses, context) or [op]
    graph.operations[:] = operations


def _rounded(op: Op, uses: Counter[Value], context: Context) -> list[Op] | None:
    """The sums that a conversion rounds, made of the rows that change; None: it rounds none, or the
    whole table is as fast."""
    made = op.operands[0].producer if op.name == "convert" else None
    if made is None or made.name != "scatter" or len(made.results) != 1:
        return None
    if uses[made.result] > 1 or reducer(made) != "add" or not is_of_rows(made):
        return None
    wide = made.operands[0].producer
    if wide is None or not is_widening(wide) or wide.operands[0].dtype != op.result.dtype:
        return None
    if made.result.dtype != _FLOAT32 or not _pays(made, context):
        return None
    writer = Writer(op.source, op.scope, context)
    return writer.made(op, _replaced(writer, made, wide.operands[0]))


def _pays(scatter: Op, context: Context) -> bool:
    """Whether widening the table, eight bytes for each number, takes longer than another one."""
    table, _, updates = scatter.operands
    rows = math.prod(updates.shape) // math.prod(table.shape[1:])
    tuning, rates = context.tuning, context.rates
    saved = 2 * table.dtype.itemsize * math.prod(table.shape)
    saved -= tuning.touched_row_bytes * math.prod(updates.shape)
    turns = -(-rows // PARTITIONS)
    begun = tuning.touched_row_kernels + tuning.touched_row_transfers * turns
    return saved / rates.bytes_per_ns > begun * rates.transfer_ns


def _replaced(writer: Writer, scatter: Op, table: Value) -> Value:
    """The narrow table with the sums of its rows and their updates."""
    _, indices, updates = scatter.operands
    places, *row = table.shape
    count = math.prod(updates.shape) // math.prod(row)
    index = writer.convert(writer.reshape(indices, (count, 1)), _INT32)
    new = writer.reshape(updates, (count, *row))
    numbers = writer.add("iota", shape=(count,), dtype=_INT32, iota_dimension=0)
    column = writer.constant(0, Value(TensorSpec((places,), _INT32)))
    column = _scattered(writer, column, index, numbers, scatter.attributes)
    own = writer.reshape(_gathered(writer, column, index), (count, 1))
    # An update outside the table adds to nothing.
    is_less = writer.compare("LT", index, writer.constant(places, index))
    is_place = writer.add(
        "and", writer.compare("GE", index, writer.constant(0, index)), is_less
    )  # fmt: skip
    own = writer.add("select", is_place, own, writer.constant(count, own), dtype=_INT32)
    number = number_of(table)
    if number is None:
        olds = writer.convert(_gathered(writer, table, index), _FLOAT32)
    else:
        olds = writer.constant(number, new)
    given = {**scatter.attributes, "scatter_dimension_numbers": _dimensions(len(new.shape))}
    sums = writer.add("scatter", olds, own, new, shape=olds.shape, regions=scatter.regions, **given)
    rows = writer.convert(_gathered(writer, sums, own), table.dtype)
    return _scattered(writer, table, index, rows, scatter.attributes)


def _dimensions(rank: int) -> dict[str, Any]:
    """The dimensions of a scatter of whole rows."""
    return {
        "update_window_dims": tuple(range(1, rank)), "inserted_window_dims": (0,),
        "input_batching_dims": (), "scatter_indices_batching_dims": (),
        "scattered_dims_to_operand_dims": (0,), "index_vector_dim": 1,
    }  # fmt: skip


def _scattered(
    writer: Writer, table: Value, index: Value, rows: Value, attributes: Mapping[str, Any]
) -> Value:
    """A table whose rows have been replaced; of several rows for a place, one stays."""
    parameters = tuple(Value(TensorSpec((), table.dtype)) for _ in range(2))
    given = {**attributes, "scatter_dimension_numbers": _dimensions(len(table.shape))}
    return writer.add(
        "scatter", table, index, rows, shape=table.shape, dtype=table.dtype,
        regions=(Graph(parameters, [], parameters[1:]),), **given,
    )  # fmt: skip


def _gathered(writer: Writer, table: Value, index: Value) -> Value:
    """The rows of a table that indices name; the last one for those beyond it."""
    rank = len(table.shape)
    return writer.add(
        "gather", table, index, shape=(index.shape[0], *table.shape[1:]), dtype=table.dtype,
        dimension_numbers={
            "offset_dims": tuple(range(1, rank)), "collapsed_slice_dims": (0,),
            "operand_batching_dims": (), "start_indices_batching_dims": (),
            "start_index_map": (0,), "index_vector_dim": 1,
        },
        slice_sizes=(1, *table.shape[1:]), indices_are_sorted=False,
    )  # fmt: skip
