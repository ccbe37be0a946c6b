"""The K greatest of long rows, from the K parts of each row that have the greatest elements.

An element that is among the K greatest lies in a part whose greatest element is: each part that
comes before it has an element that does. So a row is gone through once, for the greatest of each
part, and the rounds of `selection.py` choose parts, and then elements of these. NaN and zeros of
both signs have an order that greatest elements do not show: rows for which it matters are chosen
from as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from neuronjax.formats import EXACT_INTEGERS
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import IDENTITIES
from neuronjax.lower.rewriter import IS_USUAL, Writer
from neuronjax.machine.specs import PARTITIONS

_FLOAT32 = np.dtype(np.float32)
_LENGTHS = tuple(1 << n for n in range(3, 10))
"""Elements of a part."""
WHOLE = "whole"
"""Attribute of a choice from rows that are not looked at by parts again."""


def top(writer: Writer, value: Value, kept: int) -> tuple[Value, Value]:
    """The greatest of each row, and their places in it, chosen by rounds."""
    shape = (*value.shape[:-1], kept)
    specs = [TensorSpec(shape, value.dtype), TensorSpec(shape, np.dtype(np.int32))]
    best, places = writer.several("chlo.top_k", [value], specs, (), {"k": kept, WHOLE: True})
    return best, places


def of_best_parts(
    writer: Writer, op: Op, elements: Callable[[int, int, int], float]
) -> Sequence[Value] | None:
    """The choice from the best parts of rows, where that is faster.

    `elements` of a number of rows, of their elements and of those that are kept is what choosing
    from whole rows goes through.
    """
    (operand,), kept = op.operands, op.results[0].shape[-1]
    *rows, size = operand.shape
    count = math.prod(rows)
    is_counted = elementwise.is_float(operand.dtype) and size < EXACT_INTEGERS
    if WHOLE in op.attributes or not kept or not is_counted:
        return None

    def work(length: int) -> float:
        parts, rest = divmod(size, length)
        if parts < 2 * kept:
            return math.inf
        once = count * size / PARTITIONS + writer.tuning.best_parts_trip
        return once + elements(count, parts, kept) + elements(count, kept * length + rest, kept)

    length = min(_LENGTHS, key=work)
    if work(length) >= elements(count, size, kept):
        return None
    flat = writer.reshape(operand, (count, size))
    parts = size // length
    main = writer.reshape(writer.slice(flat, 1, 0, parts * length), (count, parts, length))
    lowest = writer.constant(IDENTITIES["maximum"], Value(TensorSpec((), operand.dtype)))
    greatest = writer.reduce("maximum", main, lowest, (2,))
    bests, numbers = top(writer, greatest, kept)
    inner, other = (writer.branch() for _ in range(2))
    chosen = _chosen(inner, flat, numbers, length)
    specs = [result.spec for result in op.results]
    inside = [inner.reshape(value, spec.shape) for value, spec in zip(chosen, specs, strict=True)]
    whole = top(other, operand, kept)
    branches = (
        Graph((), inner.operations, tuple(inside)),
        Graph((), other.operations, whole),
    )  # fmt: skip
    return writer.several("if", [_is_plain(writer, greatest, bests)], specs, branches,
                          {IS_USUAL: True})  # fmt: skip


def _is_plain(writer: Writer, greatest: Value, bests: Value) -> Value:
    """Whether no row has NaN, and none keeps a part whose greatest element is a zero at last."""
    is_nan = writer.compare("NE", greatest, greatest)
    last = writer.slice(bests, 1, bests.shape[1] - 1, bests.shape[1])
    is_zero = writer.compare("EQ", last, writer.constant(0, last))
    odd = [writer.sum(writer.convert(value, _FLOAT32), (0, 1)) for value in (is_nan, is_zero)]
    total = writer.add("add", *odd)
    return writer.compare("EQ", total, writer.constant(0, total))


def _chosen(writer: Writer, flat: Value, numbers: Value, length: int) -> tuple[Value, Value]:
    """The greatest of parts of rows, and their places in the rows."""
    (count, size), kept = flat.shape, numbers.shape[1]
    # Equals are chosen from the left: parts stand in their order.
    descending, _ = top(
        writer, writer.add("negate", writer.convert(numbers, _FLOAT32)), kept
    )  # fmt: skip
    starts = writer.add("multiply", descending, writer.constant(-length, descending))
    at = writer.reshape(writer.convert(starts, np.int32), (count, kept, 1))
    candidates = writer.windows(flat, at, length)
    shape = (count, kept, length)
    line = writer.add("iota", shape=shape, dtype=_FLOAT32, iota_dimension=2)
    places = writer.add("add", line, writer.broadcast(starts, shape, (0, 1)))
    both = [writer.reshape(value, (count, kept * length)) for value in (candidates, places)]
    first = size // length * length
    if first < size:
        tail = np.broadcast_to(np.arange(first, size, dtype=_FLOAT32), (count, size - first))
        rest = writer.add("constant", shape=tail.shape, dtype=_FLOAT32, value=tail)
        both[0] = writer.concatenate([both[0], writer.slice(flat, 1, first, size)], 1)
        both[1] = writer.concatenate([both[1], rest], 1)
    values, chosen = top(writer, both[0], kept)
    return values, of_rows(writer, writer.convert(both[1], np.int32), chosen)


def of_rows(writer: Writer, table: Value, places: Value) -> Value:
    """The elements of each row at places in it."""
    numbers = {
        "offset_dims": (), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
        "start_indices_batching_dims": (0,), "start_index_map": (1,), "index_vector_dim": 2,
    }  # fmt: skip
    return writer.add(
        "gather", table, places, shape=places.shape, dtype=table.dtype, dimension_numbers=numbers,
        slice_sizes=(1, 1), indices_are_sorted=False,
    )  # fmt: skip
