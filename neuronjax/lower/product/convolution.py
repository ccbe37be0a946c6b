"""`convolution`: a product whose contracted dimensions are the taps of the window and features.

The input is walked with strides: positions and taps of a window run along the same memory. Padding
and dilation of the input are made in HBM before; groups are products side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.hlo.graph import Op
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.filling import spread
from neuronjax.lower.operations import padding_of
from neuronjax.lower.product.matmul import Sides, write_product
from neuronjax.lower.product.panels import blocks
from neuronjax.lower.product.steps import Batch, Product
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.element_types import ElementType

PARTS = "parts_of_sums"
"""Attribute of a convolution whose result has parts of its sums, along a first dimension."""


def convolution(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A convolution with its epilogue, after its input has been padded."""
    numbers, a = op.attributes["dimension_numbers"], op.attributes
    spatial = numbers["input_spatial_dimensions"]
    data = padded(scope, op, spatial)
    kernel = scope.view(op.operands[1])
    reversal = a["window_reversal"] if a["window_reversal"] is not None else ()
    taps = numbers["kernel_spatial_dimensions"]
    kernel = kernel.reversed([axis for axis, flip in zip(taps, reversal, strict=False) if flip])
    sides = _sides(op, data, kernel)
    write_product(scope, op, epilogue, [data, kernel], _ways(sides))


def _sides(op: Op, data: View, kernel: View) -> Sides:
    """Dimensions: those of the result, taps, input features, and the number of the group."""
    a, numbers = op.attributes, op.attributes["dimension_numbers"]
    rank = len(op.result.shape)
    window = len(numbers["input_spatial_dimensions"])
    groups = a["feature_group_count"]
    batch_groups = a["batch_group_count"]
    count = groups * batch_groups
    taps = tuple(range(rank, rank + window))
    feature, group = rank + window, rank + window + 1
    output, rows = numbers["output_feature_dimension"], numbers["output_batch_dimension"]
    places = numbers["output_spatial_dimensions"]
    channels = kernel.shape[numbers["kernel_input_feature_dimension"]]
    sizes = [*op.result.shape, *(0 for _ in taps), channels, 1]
    sizes[output] //= count
    left, right, memory = [0] * len(sizes), [0] * len(sizes), list(range(len(sizes)))
    for index in range(window):
        tap = kernel.shape[numbers["kernel_spatial_dimensions"][index]]
        sizes[taps[index]] = tap
        stride = data.strides[numbers["input_spatial_dimensions"][index]]
        left[places[index]] = stride * int(a["window_strides"][index])
        left[taps[index]] = stride * int(a["rhs_dilation"][index])
        right[taps[index]] = kernel.strides[numbers["kernel_spatial_dimensions"][index]]
        memory[taps[index]] = places[index]
    left[rows] = data.strides[numbers["input_batch_dimension"]]
    left[feature] = data.strides[numbers["input_feature_dimension"]]
    right[feature] = kernel.strides[numbers["kernel_input_feature_dimension"]]
    right[output] = kernel.strides[numbers["kernel_output_feature_dimension"]]
    if batch_groups > 1:
        left[group] = left[rows] * op.result.shape[rows]
    else:
        left[group] = left[feature] * channels
    batches = (Batch(count, ((output, sizes[output]), (group, 1))),) if count > 1 else ()
    parts = a.get(PARTS, 1)
    if parts > 1:
        axis = parted_dimension(op, parts)
        of_kernel = (*numbers["kernel_spatial_dimensions"],
                     numbers["kernel_input_feature_dimension"])  # fmt: skip
        cut = (*taps, feature)[of_kernel.index(axis)]
        sizes[cut] //= parts
        sizes[0] = 1
        batches = (Batch(parts, ((0, 1), (cut, sizes[cut]))),)
    product = Product(tuple(sizes), batches, (rows, *places), (output,), (*taps, feature))
    return Sides(product, tuple(left), tuple(right), tuple(memory))


def parted_dimension(op: Op, parts: int) -> int | None:
    """The dimension of a convolution's kernel that sums are cut along; None: none can be."""
    numbers, kernel = op.attributes["dimension_numbers"], op.operands[1].shape
    summed = (*numbers["kernel_spatial_dimensions"], numbers["kernel_input_feature_dimension"])
    even = [axis for axis in summed if kernel[axis] % parts == 0]
    return max(even, key=lambda axis: kernel[axis], default=None)


def _ways(sides: Sides) -> Sequence[Sides]:
    """The product, and others that are as right.

    With the taps in reverse, if that puts another dimension, or a part of another one, on
    partitions: neighbours along the last one then lie in one partition, in long runs. And with
    weights that are loaded by rows and transposed, if their taps lie between features, in runs of a
    few bytes.
    """
    product, ways = sides.product, [sides]
    *taps, feature = product.contracted
    reverse = replace(product, contracted=(*reversed(taps), feature))
    first, second = (
        set(next(blocks(way.axes(way.contracted), PARTITIONS)).tile) for way in (product, reverse)
    )
    if first != second:
        ways.append(replace(sides, product=reverse))
    fills_partitions = 2 * product.sizes[feature] > PARTITIONS
    if fills_partitions and 1 < product.count(taps) == abs(sides.right[feature]):
        ways.append(replace(sides, product=replace(product, transposes_taps=True)))
    return ways


def padded(scope: Scope, op: Op, spatial: Sequence[int]) -> View:
    """The input with padding and dilation; itself, or part of itself, if nothing is added."""
    view, value = scope.view(op.operands[0]), op.operands[0]
    if value in scope.framed:
        return scope.framed[value]
    (low, high), step = padding_of(op), [1] * len(value.shape)
    for index, axis in enumerate(spatial):
        step[axis] = int(op.attributes["lhs_dilation"][index])
    starts, limits, targets, sizes = [], [], [], []
    for axis, size in enumerate(value.shape):
        total = (size - 1) * step[axis] + 1 + low[axis] + high[axis]
        first = max(0, -(low[axis] // step[axis])) if low[axis] < 0 else 0
        last = min(size - 1, (total - 1 - low[axis]) // step[axis])
        starts.append(first)
        limits.append(last + 1)
        targets.append(low[axis] + first * step[axis])
        sizes.append(total)
    counts = [max(0, b - a) for a, b in zip(starts, limits, strict=True)]
    seen = view.sliced(
        starts, [s + n for s, n in zip(starts, counts, strict=True)], [1] * len(step)
    )
    if counts == sizes:
        return seen
    storage = storage_of(value.dtype)
    target = _like(scope, seen, sizes, storage.dtype)
    spread(scope, target, 0, op, name="zero")
    if math.prod(counts):
        ends = [t + (n - 1) * s + 1 for t, n, s in zip(targets, counts, step, strict=True)]
        scope.copy(seen, target.sliced(targets, ends, step), op)
    return target


def _like(scope: Scope, view: View, sizes: Sequence[int], dtype: ElementType) -> View:
    """A new buffer of these sizes, whose dimensions lie in the order of those of a view."""
    order = sorted(range(len(sizes)), key=lambda axis: -abs(view.strides[axis]))
    shape = tuple(sizes[axis] for axis in order)
    buffer = scope.scratch(shape, dtype, "padded")
    return whole_view(buffer, shape).along([order.index(axis) for axis in range(len(order))])


EPILOGUES = {"convolution": convolution}
"""Operation -> rule."""
