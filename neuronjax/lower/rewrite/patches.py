"""Convolutions whose windows lie side by side: their patches are the rows of a product.

With features first, as PyTorch has them, neighbours along a window's last axis are all that is
contiguous, and the Tensor engine would be given every such run by itself. Rearranged once, a patch
is one run, as is each row of the kernel. (The patch embedding of Dosovitskiy et al., "An Image is
Worth 16x16 Words", arXiv:2010.11929, is such a convolution.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.rewriter import Writer


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The product of patches [rows, *places, features and window] with a kernel's rows."""
    if not _is_side_by_side(op):
        return None
    data, kernel = op.operands
    numbers = op.attributes["dimension_numbers"]
    rows = numbers["input_batch_dimension"]
    spatial = list(numbers["input_spatial_dimensions"])
    tap_of = dict(zip(spatial, numbers["kernel_spatial_dimensions"], strict=True))
    contracted = [axis for axis in range(len(data.shape)) if axis != rows]
    axes = [tap_of.get(axis, numbers["kernel_input_feature_dimension"]) for axis in contracted]
    patches = _patches(
        writer, data, rows, spatial, [kernel.shape[tap_of[axis]] for axis in spatial]
    )
    outputs = numbers["kernel_output_feature_dimension"]
    is_last = outputs == len(kernel.shape) - 1
    kernel = writer.transpose(kernel, [*axes, outputs] if is_last else [outputs, *axes])
    count, length = kernel.shape[-1 if is_last else 0], patches.shape[-1]
    kernel = writer.reshape(kernel, (length, count) if is_last else (count, length))
    product = writer.add(
        "dot_general", patches, kernel,
        shape=[*patches.shape[:-1], count], dtype=op.result.dtype,
        dot_dimension_numbers={
            "lhs_batching_dimensions": (),
            "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (len(patches.shape) - 1,),
            "rhs_contracting_dimensions": (0 if is_last else 1,),
        },
    )  # fmt: skip
    made = [
        numbers["output_batch_dimension"],
        *numbers["output_spatial_dimensions"],
        numbers["output_feature_dimension"],
    ]
    return [writer.transpose(product, [made.index(axis) for axis in range(len(made))])]


def _patches(
    writer: Writer, data: Value, rows: int, spatial: Sequence[int], window: Sequence[int]
) -> Value:
    """[rows, *places, length]; within a patch, the order is that of `data`."""
    apart: list[int] = []
    places: dict[int, int] = {}
    for axis, size in enumerate(data.shape):
        places[axis] = len(apart)
        if axis in spatial:
            tap = window[spatial.index(axis)]
            apart += [size // tap, tap]
        else:
            apart.append(size)
    outer = [places[rows], *(places[axis] for axis in spatial)]
    order = [*outer, *(at for at in range(len(apart)) if at not in outer)]
    patches = writer.transpose(writer.reshape(data, apart), order)
    kept = patches.shape[: len(outer)]
    return writer.reshape(patches, (*kept, math.prod(patches.shape[len(outer) :])))


def _is_side_by_side(op: Op) -> bool:
    """Whether windows of several taps cover the input once, of which features are not last."""
    data, kernel = op.operands
    a, numbers = op.attributes, op.attributes["dimension_numbers"]
    spatial = numbers["input_spatial_dimensions"]
    window = [kernel.shape[axis] for axis in numbers["kernel_spatial_dimensions"]]
    reversal = a["window_reversal"]
    return (
        numbers["input_feature_dimension"] != len(data.shape) - 1
        and a["feature_group_count"] == a["batch_group_count"] == 1
        and [int(step) for step in a["window_strides"]] == window
        and math.prod(window) > 1
        and not any(int(edge) for pair in a["padding"] for edge in pair)
        and all(int(step) == 1 for step in (*a["lhs_dilation"], *a["rhs_dilation"]))
        and not any(reversal if reversal is not None else ())
        and all(data.shape[axis] % size == 0 for axis, size in zip(spatial, window, strict=True))
        and bool(math.prod(op.result.shape))
    )
