"""The first K of sorted rows: `chlo.top_k`, and the custom call `ApproxTopK`.

`chlo.top_k` chooses in rounds (`selection.py`). What it cannot choose so is sorted with the numbers
of elements; long rows in parts first.
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
from neuronjax.lower.sort.selection import is_selectable, select_views
from neuronjax.lower.sort.sort import longest_row, sort_views
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import PARTITIONS


def top_k(scope: Scope, op: Op) -> None:
    """The greatest of each row and where they are; long rows in parts first."""
    (operand,) = op.operands
    axis, size = len(operand.shape) - 1, operand.shape[-1]
    if is_selectable(operand.dtype, size, op.results[0].shape[axis]):
        results = [whole_view(scope.result(value), value.shape) for value in op.results]
        select_views(scope, op, scope.view(operand), operand.dtype, results)
        return
    indices = whole_view(scope.unit.constant(np.arange(size, dtype=np.int32)), (size,))
    views = [scope.view(operand), indices.broadcast(operand.shape, (axis,))]
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    comparator = _greater(operand.dtype)
    longest = longest_row(scope, views, comparator)
    if size > longest:
        views = _best_of_parts(scope, op, comparator, views, longest)
    if views[0].shape[axis] > longest:
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

REWRITES: Mapping[str, Rewrite] = {"custom_call": approximate}
"""Operation -> what it is in terms of others."""
