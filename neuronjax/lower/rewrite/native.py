"""Operations that engines do by themselves, where a program spells them out for other processors.

* Products of numbers that were widened to FP32 are the same as of the narrow numbers, which the
  Tensor engine adds up in FP32: products of numbers of at most 12 significant bits are exact.
* An engine's NaN is the canonical one: nothing has to choose it.
* Rounding what was widened is nothing; GELU and its derivative are activations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.operations import PACKED, is_splat, is_widening, number_of, peel, reducer
from neuronjax.lower.reduction.window import Windows, windows_of
from neuronjax.lower.rewrite import depthwise, gelu, merged_groups, patches, repeated
from neuronjax.lower.rewrite.argmax import argmax
from neuronjax.lower.rewrite.composed import expanded
from neuronjax.lower.rewrite.dots import rows_with_rows, sum_of_squares
from neuronjax.lower.rewrite.marked_sums import sum_of_marked
from neuronjax.lower.rewrite.scatters import scatter
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.lower.values.storage import is_native
from neuronjax.machine.specs import PARTITIONS, WORD_BYTES

_FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")
_EXACT: Mapping[str, frozenset[str]] = {
    "float32": frozenset({"bfloat16", "float16", *_FP8, "int8"}),
    "bfloat16": frozenset({*_FP8, "int8"}),
}
"""Type -> narrow types all of whose values it has, multiplied as they are or in BF16."""
_SEEN = ("broadcast_in_dim", "reshape", "transpose", "slice")


def _made_by(value: Value, *names: str) -> Op | None:
    op = value.producer
    return op if op is not None and op.name in names else None


def _narrow(value: Value) -> tuple[Value, list[Op]] | None:
    """The narrow value that a value was widened from, and the views between, last one first.

    All types between have all of its values.
    """
    narrowest: tuple[Value, list[Op]] | None = None
    views: list[Op] = []
    passed = [value.dtype]
    while value.producer is not None and value.producer.name in (*_SEEN, "convert"):
        if value.producer.name != "convert":
            views.append(value.producer)
        value = value.producer.operands[0]
        if value.dtype != passed[-1]:
            if all(_has(dtype, value.dtype) for dtype in passed):
                narrowest = value, list(views)
            passed.append(value.dtype)
    return narrowest


def _has(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a type has all values of another one, which the Tensor engine multiplies."""
    return wide == narrow or narrow.name in _EXACT.get(wide.name, ())


def _again(writer: Writer, source: Value, views: Sequence[Op]) -> Value:
    """The views on a value of another type."""
    for view in reversed(views):
        source = writer.add(
            view.name, source, shape=view.result.shape, dtype=source.dtype, **view.attributes
        )
    return source


def product(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A product of narrow numbers, if both operands were."""
    if op.result.dtype != np.float32 or len(op.operands) != 2:
        return None
    narrow = [_narrow(operand) for operand in op.operands]
    if not all(narrow) or all(entry[0].dtype == np.int8 for entry in narrow if entry):
        return None
    operands = [_again(writer, *entry) for entry in narrow if entry]
    return [
        writer.add(
            op.name, *operands, shape=op.result.shape, dtype=op.result.dtype, **op.attributes
        )
    ]


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A convolution of narrow numbers, of fewer groups, by products by channel, or of patches."""
    ways = (product, merged_groups.convolution, depthwise.convolution, patches.convolution)
    return next(filter(None, (way(writer, op) for way in ways)), None)


def dot_general(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A product without copies of an operand, of rows with rows, or of narrow numbers."""
    ways = (repeated.dot_general, rows_with_rows, product)
    return next(filter(None, (way(writer, op) for way in ways)), None)


def convert(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Back to the narrow type that a value was widened from."""
    widened = _made_by(op.operands[0], "convert")
    if widened is None:
        return _narrow_collective(writer, op)
    (source,) = widened.operands
    wide = widened.result.dtype.name
    if source.dtype == op.result.dtype and source.dtype.name in _EXACT.get(wide, ()):
        return [source]
    return None


def select(writer: Writer, op: Op) -> Sequence[Value] | None:
    """x where it is a number, else NaN."""
    test, value, other = op.operands
    compared = _made_by(test, "compare")
    if compared is None or compared.attributes["comparison_direction"] != "EQ":
        return None
    if compared.operands != (value, value):
        return None
    number = number_of(other)
    return [value] if number is not None and np.isnan(number) else None


def divide(writer: Writer, op: Op) -> Sequence[Value] | None:
    """1 / (1 + exp(-x)) of FP32: nothing is rounded between."""
    dividend, total = op.operands
    added = _made_by(total, "add")
    if added is None or number_of(dividend) != 1 or op.result.dtype != np.float32:
        return None
    for left, right in (added.operands, added.operands[::-1]):
        power = _made_by(left, "exponential")
        inverse = _made_by(power.operands[0], "negate") if power is not None else None
        if inverse is not None and number_of(right) == 1:
            return [writer.add("logistic", inverse.operands[0])]
    return None


def reduce(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A sum of squares of all numbers of a tensor; a sum of rows of a matrix; places of extrema."""
    if len(op.results) == 2:
        return argmax(writer, op)
    if reducer(op) != "add":
        return None
    if marked := sum_of_marked(writer, op):
        return marked
    square = _made_by(op.operands[0], "multiply")
    if square is None or math.prod(op.result.shape) != 1:
        return _sum_of_rows(writer, op)
    return sum_of_squares(writer, op, square)


def _sum_of_rows(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The sum of all rows of a matrix: ones times the matrix.

    Rows lie on partitions, over which only the Tensor engine adds up as fast as it reads.
    """
    value, zero = op.operands
    dimensions = sorted(op.attributes["dimensions"])
    count = len(dimensions)
    rows, columns = math.prod(value.shape[:count]), math.prod(value.shape[count:])
    if dimensions != list(range(count)) or min(rows, columns) < PARTITIONS:
        return None
    if value.dtype != np.float32 or not _is_zero(zero):
        return None
    made = _made_by(value, "convert")
    if made is not None and is_widening(made):
        (value,) = made.operands  # ones are exact in any type, and sums are FP32
    matrix = writer.reshape(value, (rows, columns))
    like = Value(TensorSpec((rows,), value.dtype))
    numbers = {
        "lhs_batching_dimensions": (),
        "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (0,),
        "rhs_contracting_dimensions": (0,),
    }
    ones = writer.constant(1.0, like)
    total = writer.add(
        "dot_general", ones, matrix, shape=(columns,), dtype=op.result.dtype,
        dot_dimension_numbers=numbers,
    )  # fmt: skip
    return [writer.reshape(total, op.result.shape)]


def _is_zero(value: Value) -> bool:
    return number_of(value) == 0


_REDUCING = ("all_reduce", "reduce_scatter")


def _narrow_collective(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Collectives add up narrow numbers in FP32 and round once: nothing has to be widened."""
    wide = _made_by(op.operands[0], *_REDUCING)
    if wide is None or len(wide.results) != 1 or reducer(wide) is None:
        return None
    source = _made_by(wide.operands[0], "convert")
    if source is None or wide.result.dtype != np.float32:
        return None
    (narrow,) = source.operands
    if narrow.dtype != op.result.dtype or not _has(wide.result.dtype, narrow.dtype):
        return None
    parameters = tuple(Value(TensorSpec((), narrow.dtype)) for _ in range(2))
    inner = writer.branch()
    total = inner.add(reducer(wide) or "", *parameters)
    region = Graph(parameters, inner.operations, (total,))
    spec = TensorSpec(op.result.shape, narrow.dtype)
    return writer.several(wide.name, [narrow], [spec], (region,), wide.attributes)


def reduce_window(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The extremum, or the sum, of windows that do not slide along the last dimension.

    Small windows are combined place by place, larger ones along one dimension after the other.
    Otherwise what lies side by side would lie on partitions, and arrive one by one.
    """
    name = reducer(op) if len(op.results) == 1 else None
    windows = windows_of(op)
    sizes, rank = windows.sizes, len(windows.sizes)
    neighbours = writer.tuning.transfer_neighbours
    if name not in ("maximum", "minimum", "add") or not rank:
        return None
    if sizes[-1] > 1 or windows.strides[-1] > 1 or op.result.shape[-1] < neighbours:
        return None
    if any(low or high for low, high in windows.padding) or set(windows.base_dilations) != {1}:
        return None
    source, init = op.operands
    if math.prod(sizes) <= writer.tuning.window_taps:
        return [_combined(writer, name, source, init, windows, op.result.shape)]
    if max(sizes) > writer.tuning.written_steps or not _is_separable(name, init):
        return None
    for axis in (axis for axis in range(rank) if sizes[axis] > 1 or windows.strides[axis] > 1):
        shape = (*op.result.shape[: axis + 1], *source.shape[axis + 1 :])
        source = _combined(writer, name, source, init, windows.along(axis), shape)
    return [source]


def _is_separable(name: str, init: Value) -> bool:
    """Whether partial results may be combined: sums of FP32, to which nothing is added twice."""
    return name != "add" or (init.dtype == np.float32 and _is_zero(init))


def _combined(
    writer: Writer, name: str, source: Value, init: Value, windows: Windows, shape: Sequence[int]
) -> Value:
    """The windows of `source`, place by place."""
    total = writer.broadcast(init, shape, ())
    for place in itertools.product(*map(range, windows.sizes)):
        starts = tuple(at * step for at, step in zip(place, windows.dilations, strict=True))
        limits = tuple(
            start + (count - 1) * step + 1
            for start, count, step in zip(starts, shape, windows.strides, strict=True)
        )
        part = writer.add(
            "slice", source, shape=shape, start_indices=starts, limit_indices=limits,
            strides=tuple(windows.strides),
        )  # fmt: skip
        total = writer.add(name, total, part)
    return total


def concatenate(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Single elements side by side are chosen from: a transfer would place them one by one."""
    shape, axis = op.result.shape, len(op.result.shape) - 1
    count = len(op.operands)
    if (
        op.attributes["dimension"] != axis
        or not 1 < shape[axis] == count <= writer.tuning.interleaved_values
        or math.prod(shape) < writer.tuning.worthwhile_elements
        or op.result.dtype.itemsize > WORD_BYTES
    ):
        return None
    place = writer.add("iota", shape=shape, dtype=np.dtype(np.float32), iota_dimension=axis)
    rows = [writer.reshape(value, shape[:axis]) for value in op.operands]
    spread = [writer.broadcast(row, shape, range(axis)) for row in rows]
    total = spread[-1]
    for number, value in enumerate(spread[:-1]):
        here = writer.compare("EQ", place, writer.constant(number, place))
        total = writer.add("select", here, value, total)
    return [total]


NATIVE: Mapping[str, Rewrite] = {
    "concatenate": concatenate,
    "reduce_window": reduce_window,
    "convert": convert,
    "reduce": reduce,
    "scatter": scatter,
    "convolution": convolution,
    "dot_general": dot_general,
    "divide": divide,
    "multiply": gelu.forward,
    "add": gelu.derivative,
}
"""Operation -> what the engines do instead."""

CANONICAL: Mapping[str, Rewrite] = {"select": select}
"""Selections of an engine's own NaN; they stand between the operations of others."""


def erfc(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The complementary error function in StableHLO, where it is no part of what engines have."""
    (x,) = op.operands
    wide = writer.convert(x, np.float32)
    return [writer.convert(expanded(writer, op.name, wide), op.result.dtype)]


LATER: Mapping[str, Rewrite] = {"chlo.erfc": erfc}
"""Operation -> what is done where nothing of `NATIVE` has taken it."""


def with_own_widenings(graph: Graph) -> None:
    """Gives every user of a value widened to FP32 its own conversion of it; in place.

    Engines widen what they read. A value that kernels share is shared as narrow as it is.
    """
    operations: list[Op] = []
    for op in graph.operations:
        operands = []
        for value in op.operands:
            made = _made_by(value, "convert")
            if made is not None and is_widening(made):
                writer = Writer(made.source, made.scope)
                value = writer.convert(made.operands[0], value.dtype)
                operations += writer.operations
            operands.append(value)
        op.operands = tuple(operands)
        operations.append(op)
    graph.operations[:] = operations


def with_written_broadcasts(graph: Graph) -> None:
    """Lets engines write results that repeat numbers side by side; in place.

    Transfers would read, and write, every one of them by itself.
    """
    results = []
    for value in graph.results:
        base, relation = peel(value)
        inner = [axis for axis, size in zip(relation, value.shape, strict=True) if size != 1][-1:]
        repeats = (is_splat(base) and value.shape != ()) or inner == [None]
        if repeats and not value.is_empty and is_native(value.dtype) and value.dtype not in PACKED:
            made = value.producer
            writer = Writer(made.source if made else "", made.scope if made else "")
            value = writer.add("convert", value)
            graph.operations += writer.operations
        results.append(value)
    graph.results = tuple(results)


def without_unused(graph: Graph) -> None:
    """Removes what nobody uses; in place."""
    used = set(graph.results)
    kept: list[Op] = []
    for op in reversed(graph.operations):
        acts = bool(op.attributes.get("has_side_effect")) or not op.results
        acts = acts or bool(op.regions and op.name not in (*_REDUCING, "reduce", "scatter"))
        if acts or any(value in used for value in op.results):
            kept.append(op)
            used.update(op.operands)
            for region in op.regions:
                used.update(region.captured())
    graph.operations[:] = kept[::-1]
