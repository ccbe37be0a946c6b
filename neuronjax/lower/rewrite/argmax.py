"""Where the extremum of each row is: the extremum first, then the first place that has it.

As one reduction, each of its steps compares and selects values and places, with all that NaN and
equals need; these two take a third of the instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import number_of, peel
from neuronjax.lower.rewriter import Writer

_FLOAT32 = np.dtype(np.float32)
_EXACT = 1 << 24
"""Places that FP32 counts up to."""
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
    if not 0 < size < _EXACT or not _counts(places, axis):
        return None
    if (number_of(inits[0]), number_of(inits[1])) != (start, 0):
        return None
    kept = tuple(dim for dim in range(len(values.shape)) if dim != axis)
    best = writer.reduce(name, values, inits[0], (axis,))
    line = writer.add("iota", shape=(size,), dtype=_FLOAT32, iota_dimension=0)
    line = writer.broadcast(line, values.shape, (axis,))
    equal = writer.compare("EQ", values, writer.broadcast(best, values.shape, kept))
    place = writer.add("select", equal, line, writer.constant(size, line))
    before = writer.add("subtract", line, writer.constant(size, line))
    place = writer.add("select", writer.compare("NE", values, values), before, place)
    limit = writer.constant(size, inits[0], _FLOAT32)
    first = writer.reduce("minimum", place, limit, (axis,))
    is_nan = writer.compare("LT", first, writer.constant(0, first))
    after = writer.add("add", first, writer.constant(size, first))
    where = writer.convert(writer.add("select", is_nan, after, first), places.dtype)
    return [writer.add("select", is_nan, writer.constant(np.nan, best), best), where]


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
