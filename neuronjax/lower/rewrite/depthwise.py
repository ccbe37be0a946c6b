"""Depthwise convolutions: each channel is multiplied by its own taps, on the Vector engine.

A group of one channel is a product with one row and one column for each position, of which the
Tensor engine does one at a time. Taps are taken place by place, as all channels of all positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import padding_of
from neuronjax.lower.rates import Rates
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES
from neuronjax.program.element_types import bytes_of


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Sums of taps in FP32, of inputs with their channels last."""
    source, kernel = op.operands
    numbers = op.attributes["dimension_numbers"]
    if not is_depthwise(op, writer.tuning) or not all(
        elementwise.is_float(value.dtype) for value in (source, kernel, op.result)
    ):
        return None
    spatial = tuple(numbers["input_spatial_dimensions"])
    taps = tuple(numbers["kernel_spatial_dimensions"])
    sizes = [kernel.shape[axis] for axis in taps]
    source = _padded(writer, op, source)
    shape = op.result.shape
    total = None
    for place in itertools.product(*map(range, sizes)):
        starts, limits, steps = [0] * len(shape), list(source.shape), [1] * len(shape)
        for index, (axis, at) in enumerate(zip(spatial, place, strict=True)):
            steps[axis] = int(op.attributes["window_strides"][index])
            starts[axis] = at * int(op.attributes["rhs_dilation"][index])
            limits[axis] = starts[axis] + (shape[axis] - 1) * steps[axis] + 1
        part = writer.add(
            "slice", source, shape=shape, start_indices=tuple(starts), limit_indices=tuple(limits),
            strides=tuple(steps),
        )  # fmt: skip
        wide = writer.convert(part, np.float32)
        product = writer.add("multiply", wide, _tap(writer, kernel, taps, place, shape))
        total = product if total is None else writer.add("add", total, product)
    assert total is not None
    return [writer.convert(total, op.result.dtype)]


def is_depthwise(op: Op, tuning: Tuning) -> bool:
    """Whether every channel is a group, channels are last, and nothing is turned or dilated."""
    source, kernel = op.operands
    a, numbers = op.attributes, op.attributes["dimension_numbers"]
    rank = len(source.shape)
    channels = source.shape[-1]
    same_places = tuple(numbers["input_spatial_dimensions"]) == tuple(
        numbers["output_spatial_dimensions"]
    )
    taps = math.prod(kernel.shape[axis] for axis in numbers["kernel_spatial_dimensions"])
    neighbours = tuning.transfer_neighbours
    reversal = a["window_reversal"]
    return (
        a["feature_group_count"] == channels == op.result.shape[-1] >= neighbours
        and numbers["input_feature_dimension"] == rank - 1
        and numbers["output_feature_dimension"] == rank - 1
        and numbers["input_batch_dimension"] == numbers["output_batch_dimension"]
        and a["batch_group_count"] == 1
        and same_places
        and not any(reversal if reversal is not None else ())
        and all(int(step) == 1 for step in a["lhs_dilation"])
        and 0 < taps <= tuning.depthwise_taps
        and bool(math.prod(op.result.shape))
    )


def time(op: Op, results: int, taps: int, rates: Rates, tuning: Tuning) -> float:
    """The time in ns that Vector takes: tiles of the operands of all taps have to fit, and each
    operation of a tile has to begin."""
    operands = 2 * min(taps, tuning.group_operations // 2)
    tile = tuning.row_bytes // (operands * bytes_of(FLOAT32) * tuning.chain_slots)
    tile = min(tile, tuning.tile_elements)
    converted = op.operands[0].dtype.itemsize < bytes_of(FLOAT32)
    weight = 2 * rates.pair_ns + (tuning.depthwise_copies + converted) * rates.element_ns
    begun = 1 + INSTRUCTION_CYCLES / tile
    return results / (PARTITIONS * rates.cores) * taps * weight * begun


def _padded(writer: Writer, op: Op, source: Value) -> Value:
    """The input with its edges; edges may also cut."""
    low, high = padding_of(op)
    if not any((*low, *high)):
        return source
    shape = [a + size + b for a, size, b in zip(low, source.shape, high, strict=True)]
    zero = writer.constant(0, Value(TensorSpec((), source.dtype)))
    return writer.add(
        "pad", source, zero, shape=shape, dtype=source.dtype, edge_padding_low=tuple(low),
        edge_padding_high=tuple(high), interior_padding=(0,) * len(low),
    )  # fmt: skip


def _tap(
    writer: Writer, kernel: Value, taps: Sequence[int], place: Sequence[int], shape: Sequence[int]
) -> Value:
    """The weights of all channels at a place, at every position."""
    for axis, at in zip(taps, place, strict=True):
        kernel = writer.slice(kernel, axis, at, at + 1)
    weights = writer.convert(writer.reshape(kernel, (shape[-1],)), np.float32)
    return writer.broadcast(weights, shape, (len(shape) - 1,))
