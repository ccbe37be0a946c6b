"""The first K of sorted rows: `chlo.top_k`, and the custom call `ApproxTopK`.

`chlo.top_k` chooses in rounds (`selection.py`), of long rows from their best parts
(`best_parts.py`). What it cannot choose so is sorted with the numbers of elements; long rows in
parts first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.chain import elementwise
from neuronjax.lower.control import host
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.lower.scope import Scope
from neuronjax.lower.sort.best_parts import of_best_parts, of_rows, top
from neuronjax.lower.sort.selection import LONGEST, is_selectable, passes, select_views
from neuronjax.lower.sort.sort import longest_row, sort_views
from neuronjax.lower.values.view import View, whole_view
from neuronjax.machine.specs import PARTITIONS


def top_k(scope: Scope, op: Op) -> None:
    """The greatest of each row and where they are; long rows in parts first."""
    (operand,), most = op.operands, scope.tuning.selected_elements
    axis, size = len(operand.shape) - 1, operand.shape[-1]
    if is_selectable(operand.dtype, size, op.results[0].shape[axis], most):
        results = [whole_view(scope.result(value), value.shape) for value in op.results]
        select_views(scope, op, scope.view(operand), operand.dtype, results)
        return
    indices = whole_view(scope.unit.constant(np.arange(size, dtype=np.int32)), (size,))
    views = [scope.view(operand), indices.broadcast(operand.shape, (axis,))]
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    comparator = _greater(operand.dtype)
    dtypes = [view.buffer.dtype for view in views]
    core, tuning = scope.unit.target.core, scope.tuning
    within = longest_row(core, tuning, dtypes, comparator, spread=1)
    if size > within:
        views = _best_of_parts(scope, op, comparator, views, within)
    if views[0].shape[axis] > longest_row(core, tuning, dtypes, comparator):
        host.lower(scope, op)
        return
    sort_views(scope, op, comparator, views, axis, results)


def _best_of_parts(
    scope: Scope, op: Op, comparator: Graph, views: Sequence[View], longest: int
) -> list[View]:
    """The K greatest of parts of rows, side by side: among them are those of the rows."""
    *rows, size = views[0].shape
    kept = op.results[0].shape[-1]
    idle = max(1, PARTITIONS // math.prod(rows))
    part = max(min(longest, -(-size // idle)), kept)
    parts, rest = divmod(size, part)
    width = parts * kept + min(rest, kept)
    best = [
        whole_view(scope.scratch((*rows, width), view.buffer.dtype, "best"), (*rows, width))
        for view in views
    ]
    main = [_cut(view, 0, parts, part, part) for view in views]
    targets = [_cut(view, 0, parts, kept, kept) for view in best]
    sort_views(scope, op, comparator, main, len(rows) + 1, targets)
    if rest:
        tail = [_cut(view, parts * part, 1, rest, rest) for view in views]
        targets = [_cut(view, parts * kept, 1, min(rest, kept), kept) for view in best]
        sort_views(scope, op, comparator, tail, len(rows) + 1, targets)
    return best


def _cut(view: View, first: int, parts: int, size: int, step: int) -> View:
    """The last dimension as parts of `size` elements."""
    stride = view.strides[-1]
    return View(
        view.buffer,
        (*view.shape[:-1], parts, size),
        (*view.strides[:-1], stride * step, stride),
        view.offset + first * stride,
    )


def _greater(dtype: np.dtype) -> Graph:
    """A comparator of values with indices: the greater value first, NaN before all numbers."""
    place = np.dtype(np.int32)
    parameters = tuple(Value(TensorSpec((), kind)) for kind in (dtype, dtype, place, place))
    answer = Value(TensorSpec((), np.dtype(np.bool_)))
    kind = "TOTALORDER" if elementwise.is_float(dtype) else "SIGNED"
    answer.producer = Op(
        name="compare",
        operands=parameters[:2],
        results=(answer,),
        attributes={"comparison_direction": "GT", "compare_type": kind},
        regions=(),
        source="",
        mlir=None,
    )
    return Graph(parameters, [answer.producer], (answer,))


def in_parts(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The greatest elements of rows and where they were, from the best parts of rows or from the
    greatest of all parts where that is faster."""
    trip = writer.tuning.selection_trip

    def elements(rows: int, size: int, kept: int) -> float:
        return _best_way(rows, size, kept, trip)[0]

    best_parts = of_best_parts(writer, op, elements)
    if best_parts is not None:
        return best_parts
    (operand,) = op.operands
    *rows, size = operand.shape
    kept, count = op.results[0].shape[-1], math.prod(rows)
    if not kept:
        return None
    _, parts = _best_way(count, size, kept, trip)
    if parts == 1 or not is_selectable(
        operand.dtype, -(-size // parts), kept, writer.tuning.selected_elements
    ):
        return None
    part = size // parts
    flat = writer.reshape(operand, (count, size))
    main = writer.reshape(writer.slice(flat, 1, 0, parts * part), (count, parts, part))
    best, places = top(writer, main, kept)
    starts = np.broadcast_to(np.arange(parts, dtype=np.int32)[:, None] * part, (parts, kept))
    offsets = writer.add("constant", shape=starts.shape, dtype=np.int32, value=starts)
    places = writer.add("add", places, writer.broadcast(offsets, places.shape, (1, 2)))
    best, places = (writer.reshape(value, (count, parts * kept)) for value in (best, places))
    if size > parts * part:
        rest = np.broadcast_to(
            np.arange(parts * part, size, dtype=np.int32), (count, size - parts * part)
        )
        others = writer.add("constant", shape=rest.shape, dtype=np.int32, value=rest)
        best = writer.concatenate([best, writer.slice(flat, 1, parts * part, size)], 1)
        places = writer.concatenate([places, others], 1)
    values, chosen = top(writer, best, kept)
    where = of_rows(writer, places, chosen)
    return [writer.reshape(value, op.results[0].shape) for value in (values, where)]


def _best_way(rows: int, size: int, kept: int, trip: int) -> tuple[float, int]:
    """Elements that instructions go through, one partition's, with the number of parts with which
    they are fewest; 1: the row is chosen from.

    Putting parts together takes as long as going through `trip` elements: another kernel, a gather,
    and the four times that data is on its way to and from HBM.
    """
    work = passes(kept)
    best = (-(-rows // PARTITIONS) * size * work if size <= LONGEST else math.inf, 1)
    parts = 2
    while parts * kept * 2 <= size:
        turns = -(-rows * parts // PARTITIONS)
        if size // parts <= LONGEST and (turns == 1 or size > LONGEST):
            rest = _best_way(rows, parts * kept + size % parts, kept, trip)[0]
            best = min(best, (turns * (size // parts) * work + trip + rest, parts))
        parts *= 2
    return best


def approximate(writer: Writer, op: Op) -> Sequence[Value] | None:
    """`ApproxTopK` is exact here: rows in the order of its comparator, cut to their first K.

    Its operands are values and then an initial value of each, which exact results do not need.
    """
    if op.attributes.get("call_target_name") != "ApproxTopK":
        return None
    values = op.operands[: len(op.results)]
    axis = op.attributes["mhlo.backend_config"]["reduction_dim"]
    order = {"dimension": axis, "is_stable": True}
    rows = writer.several("sort", values, [value.spec for value in values], op.regions, order)
    count = op.results[0].shape[axis]
    return [writer.slice(row, axis, 0, count) for row in rows]


RULES = {"chlo.top_k": top_k}
"""Operation -> rule."""

REWRITES: Mapping[str, Rewrite] = {"chlo.top_k": in_parts, "custom_call": approximate}
"""Operation -> what it is in terms of others."""
