"""The place of the extremum of each row: the extremum first, then the first place that has it.

As one reduction, each of its steps compares and selects values and places, with all that NaN and
equals need; these two take a third of the instructions. Of long rows, the place is looked for in
the first of their parts that has the extremum, so that most of a row is gone through once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuronjax.formats import EXACT_INTEGERS
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import number_of, peel
from neuronjax.lower.rewriter import Writer

_FLOAT32 = np.dtype(np.float32)
_NAMES = ("compare", "compare", "or", "compare", "compare", "and", "or", "select", "select")
_EXTREMA = {"GT": ("maximum", -np.inf), "LT": ("minimum", np.inf)}
"""How JAX compares values -> what it looks for, and where it begins."""


def argmax(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Extrema and their places: NaN first, then the first of equals."""
    (region,) = op.regions
    direction = _direction(region)
    if direction is None:
        return None
    name, start = _EXTREMA[direction]
    values, places, *inits = op.operands
    dimensions = op.attributes["dimensions"]
    is_plain = elementwise.is_float(values.dtype) and values.dtype.itemsize in (2, 4)
    if not is_plain or len(dimensions) != 1:
        return None
    (axis,), size = dimensions, values.shape[dimensions[0]]
    if not 0 < size < EXACT_INTEGERS or not _counts(places, axis):
        return None
    if (number_of(inits[0]), number_of(inits[1])) != (start, 0):
        return None
    tuning = writer.tuning
    is_long = axis == len(values.shape) - 1 and math.prod(values.shape) >= tuning.argmax_elements
    find = _find_in_parts if is_long and size >= tuning.long_row_trip else _find_in_rows
    best, is_nan, first = find(writer, name, values, axis, inits[0])
    where = writer.convert(first, places.dtype)
    return [writer.add("select", is_nan, writer.constant(np.nan, best), best), where]


def _find_in_rows(
    writer: Writer, name: str, values: Value, axis: int, init: Value
) -> tuple[Value, Value, Value]:
    """Extrema, whether they are NaN, and the first places that have them, in FP32."""
    size = values.shape[axis]
    kept = tuple(dim for dim in range(len(values.shape)) if dim != axis)
    best = writer.reduce(name, values, init, (axis,))
    line = writer.add("iota", shape=(size,), dtype=_FLOAT32, iota_dimension=0)
    line = writer.broadcast(line, values.shape, (axis,))
    equal = writer.compare("EQ", values, writer.broadcast(best, values.shape, kept))
    place = writer.add("select", equal, line, writer.constant(size, line))
    before = writer.add("subtract", line, writer.constant(size, line))
    place = writer.add("select", writer.compare("NE", values, values), before, place)
    limit = writer.constant(size, init, _FLOAT32)
    first = writer.reduce("minimum", place, limit, (axis,))
    is_nan = writer.compare("LT", first, writer.constant(0, first))
    after = writer.add("add", first, writer.constant(size, first))
    return best, is_nan, writer.add("select", is_nan, after, first)


def _find_in_parts(
    writer: Writer, name: str, values: Value, axis: int, init: Value
) -> tuple[Value, Value, Value]:
    """What `_find_in_rows` finds, of long rows: in the first part with the extremum.

    The last part ends with the row, and may begin within the one before.
    """
    *rows, size = values.shape
    count, length = math.prod(rows), 1 << (size - 1).bit_length() // 2
    parts = size // length
    flat = writer.reshape(values, (count, size))
    main = writer.reshape(
        writer.slice(flat, 1, 0, parts * length), (count, parts, length)
    )  # fmt: skip
    bests = writer.reduce(name, main, init, (2,))
    if parts * length < size:
        tail = writer.reduce(name, writer.slice(flat, 1, size - length, size), init, (1,))
        bests = writer.concatenate([bests, writer.reshape(tail, (count, 1))], 1)
    best, _, part = _find_in_rows(writer, name, bests, 1, init)
    start = writer.add("multiply", part, writer.constant(length, part))
    start = writer.add("minimum", start, writer.constant(size - length, start))
    at = writer.reshape(writer.convert(start, np.int32), (count, 1))
    _, is_nan, place = _find_in_rows(writer, name, writer.windows(flat, at, length), 1, init)
    answers = (best, is_nan, writer.add("add", start, place))
    first, second, third = (writer.reshape(value, rows) for value in answers)
    return first, second, third


def _direction(region: Graph) -> str | None:
    """How a region that JAX writes for argmax or argmin compares values; None: it is another."""
    if tuple(op.name for op in region.operations) != _NAMES or len(region.parameters) != 4:
        return None
    left, place, right, second = region.parameters
    better, odd, wins, equal, earlier, tied, comes, value, index = region.operations
    expected = (
        (better, (left, right)), (odd, (left, left)), (wins, (better.result, odd.result)),
        (equal, (left, right)), (earlier, (place, second)), (tied, (equal.result, earlier.result)),
        (comes, (wins.result, tied.result)), (value, (wins.result, left, right)),
        (index, (comes.result, place, second)),
    )  # fmt: skip
    ways = [op.attributes["comparison_direction"] for op in (better, odd, equal, earlier)]
    if any(op.operands != operands for op, operands in expected) or ways[1:] != ["NE", "EQ", "LT"]:
        return None
    is_result = region.results == (value.result, index.result)
    return ways[0] if is_result and ways[0] in _EXTREMA else None


def _counts(places: Value, axis: int) -> bool:
    """Whether places are the numbers of elements along a dimension."""
    base, relation = peel(places)
    made = base.producer
    if made is None or made.name != "iota":
        return False
    return relation[axis] == made.attributes["iota_dimension"]
