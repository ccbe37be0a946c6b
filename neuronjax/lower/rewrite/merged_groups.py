"""Convolutions of narrow groups, some groups at a time.

A group of few channels fills a corner of the Tensor engine's array. Neighbouring groups are one
group where the kernel is zero between one's inputs and another's outputs; gradients of kernels have
the sums between groups left out afterwards. Zeros times infinity or NaN would spread to other
groups: what is convolved must be finite, or groups stay apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import greatest_divisor
from neuronjax.lower.rates import Rates
from neuronjax.lower.rewrite import depthwise
from neuronjax.lower.rewriter import IS_USUAL, Writer, is_finite
from neuronjax.machine.specs import PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES

_APART = "groups_apart"
"""Attribute of a convolution whose groups stay as they are."""


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The convolution with fewer groups, where that is faster."""
    a = op.attributes
    is_narrow = all(elementwise.is_float(value.dtype) for value in (*op.operands, op.result))
    if _APART in a or not is_narrow or not math.prod(op.result.shape):
        return None
    if a["batch_group_count"] > 1:
        return _gradient(writer, op, a["batch_group_count"])
    groups = a["feature_group_count"]
    merged = _merged(op, groups)
    if merged == 1 or not _pays(writer, op, groups, merged):
        return None
    data, kernel = op.operands
    finite = is_finite(writer, data)
    inner, other = (writer.branch() for _ in range(2))
    wide = _with_zeros(inner, op, kernel, groups, merged)
    attributes = {**a, "feature_group_count": groups // merged, _APART: True}
    total = inner.add(op.name, data, wide, shape=op.result.shape, dtype=op.result.dtype,
                      **attributes)  # fmt: skip
    apart = other.add(op.name, data, kernel, shape=op.result.shape, dtype=op.result.dtype,
                      **{**a, _APART: True})  # fmt: skip
    branches = (Graph((), inner.operations, (total,)), Graph((), other.operations, (apart,)))
    return writer.several("if", [finite], [op.result.spec], branches, {IS_USUAL: True})


def _sizes(op: Op, groups: int) -> tuple[int, int]:
    """Input and output features of a group; of a gradient, rows and columns of its part of it."""
    numbers = op.attributes["dimension_numbers"]
    kernel, result = op.operands[1], op.result
    outputs = kernel.shape[numbers["kernel_output_feature_dimension"]] // groups
    if op.attributes["batch_group_count"] > 1:
        return result.shape[numbers["output_batch_dimension"]], outputs
    return kernel.shape[numbers["kernel_input_feature_dimension"]], outputs


def _merged(op: Op, groups: int) -> int:
    """How many groups fill the array."""
    most = min(groups, PARTITIONS // max(_sizes(op, groups)))
    return greatest_divisor(groups, most)


def _taps(op: Op) -> int:
    numbers = op.attributes["dimension_numbers"]
    return math.prod(op.operands[1].shape[d] for d in numbers["kernel_spatial_dimensions"])


def _passes(op: Op) -> int:
    return 4 if any(value.dtype == np.float32 for value in op.operands) else 1


def _runs_ns(value: Value, channels: int, rates: Rates) -> float:
    """The time that bringing a value takes, in runs of so many channels."""
    return math.prod(value.shape) / channels * rates.run_ns(channels * value.dtype.itemsize)


def _zeros_ns(numbers: float, rates: Rates) -> float:
    """The time that kernels take which make so many zeros, or leave as many sums out: some small
    ones, and some passes of Vector."""
    return 4 * numbers / PARTITIONS * rates.element_ns + 7 * rates.transfer_ns


def _pays(writer: Writer, op: Op, groups: int, merged: int) -> bool:
    """Whether fewer groups save more than their zeros, and seeing that all is finite, take."""
    numbers, rates = op.attributes["dimension_numbers"], writer.rates
    data, taps, (inputs, outputs) = op.operands[0], _taps(op), _sizes(op, groups)
    features = op.result.shape[numbers["output_feature_dimension"]]
    places = math.prod(op.result.shape) // features

    def work(joined: int) -> float:
        rows = inputs * joined
        taps_at_once = max(1, PARTITIONS // rows)
        depth = -(-taps // taps_at_once) * -(-rows // PARTITIONS)
        columns = groups // joined * depth * -(-outputs * joined // PARTITIONS) * places
        array = columns * _passes(op) * rates.column_ns / rates.cores
        return max(array, _runs_ns(data, rows, rates))

    size = math.prod(data.shape)
    seen = max(
        size * data.dtype.itemsize / rates.bytes_per_ns,
        size / PARTITIONS * rates.element_ns / rates.cores,
    )
    after = work(merged) + seen + _zeros_ns(taps * merged * inputs * features, rates)
    if depthwise.is_depthwise(op, writer.tuning):
        return after < depthwise.time(op, places * features, taps, rates, writer.tuning)
    return after < work(1)


def _with_zeros(writer: Writer, op: Op, kernel: Value, groups: int, merged: int) -> Value:
    """The kernel of merged groups: zeros from one group's inputs to another's outputs."""
    numbers = op.attributes["dimension_numbers"]
    inputs = numbers["kernel_input_feature_dimension"]
    outputs = numbers["kernel_output_feature_dimension"]
    own = _own(writer, kernel, inputs, outputs, groups, merged)
    kept = tuple(dim + (dim >= inputs) for dim in range(len(kernel.shape)))
    spread = writer.broadcast(kernel, own.shape, kept)
    wide = writer.add("select", own, spread, writer.constant(0, spread))
    shape = list(kernel.shape)
    shape[inputs] *= merged
    return writer.reshape(wide, shape)


def _own(writer: Writer, like: Value, rows: int, columns: int, groups: int, merged: int) -> Value:
    """Whether a column belongs to a group among the merged ones, which are a new dimension of
    `like` before its rows."""
    shape = (*like.shape[:rows], merged, *like.shape[rows:])
    outputs = like.shape[columns] // groups
    group = np.arange(like.shape[columns]) // outputs % merged
    own = np.arange(merged)[:, None] == group
    table = writer.add("constant", shape=own.shape, dtype=np.bool_, value=own)
    return writer.broadcast(table, shape, (rows, columns + (columns >= rows)))


def _gradient(writer: Writer, op: Op, groups: int) -> Sequence[Value] | None:
    """Sums between all inputs and outputs of merged groups, of which those within groups stay."""
    a, numbers = op.attributes, op.attributes["dimension_numbers"]
    merged = _merged(op, groups)
    rows, columns = numbers["output_batch_dimension"], numbers["output_feature_dimension"]
    inputs, outputs = _sizes(op, groups)
    results = math.prod(op.result.shape) // inputs // op.result.shape[columns]
    (data, kernel), rates = op.operands, writer.rates
    depth = _taps(op) * kernel.shape[numbers["kernel_input_feature_dimension"]] / PARTITIONS

    def work(joined: int) -> float:
        tiles = groups // joined * -(-results * inputs * joined // PARTITIONS)
        columns = tiles * max(outputs * joined, INSTRUCTION_CYCLES) * depth * _passes(op)
        moves = _runs_ns(data, inputs * joined, rates) + _runs_ns(kernel, outputs * joined, rates)
        return max(columns * rates.column_ns, moves)

    if work(merged) + _zeros_ns(math.prod(op.result.shape) * merged, rates) > work(1):
        return None
    shape = list(op.result.shape)
    shape[rows] *= merged
    given = {**a, "batch_group_count": groups // merged, _APART: True}
    total = writer.add(op.name, *op.operands, shape=shape, dtype=np.float32, **given)
    own = _own(writer, op.result, rows, columns, groups, merged)
    total = writer.reshape(total, own.shape)
    total = writer.add("select", own, total, writer.constant(0, total))
    return [writer.convert(writer.sum(total, (rows,)), op.result.dtype)]
