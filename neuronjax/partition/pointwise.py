"""Convolutions by kernels of one position become products, before the partitioner sees them.

XLA's partitioner ends the process when a convolution of groups of one channel is split over the
channels and its kernel has one position. Such a convolution multiplies each channel by its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.hlo.constants import number
from neuronjax.jaxlib_api.mlir import ir, stablehlo

_CONVOLUTION = "stablehlo.convolution"


def replace_pointwise(module: ir.Module) -> None:
    """Replaces depthwise convolutions by one position, in place. Needs an MLIR context."""
    convolutions: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == _CONVOLUTION and _is_plain(op) and _is_product(op):
            convolutions.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in convolutions:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_product(op))
        op.erase()


def _is_plain(op: Any) -> bool:
    """Whether nothing is padded, and no position of the source is left out or put in."""
    attributes = op.attributes
    steps = ("window_strides", "lhs_dilation", "rhs_dilation")
    return not ("padding" in attributes and np.any(np.asarray(attributes["padding"]))) and all(
        np.all(np.asarray(attributes[name]) == 1) for name in steps if name in attributes
    )


def _is_product(op: Any) -> bool:
    """Whether each channel of the source is multiplied by numbers of its own."""
    numbers = _numbers(op)
    kernel = _shape(op.operands[1])
    return (
        number(op, "feature_group_count") > 1 == number(op, "batch_group_count")
        and kernel[numbers.kernel_input_feature_dimension] == 1
        and all(kernel[axis] == 1 for axis in numbers.kernel_spatial_dimensions)
    )


def _product(op: Any) -> Any:
    numbers, result = _numbers(op), op.results[0].type
    shape, element = list(result.shape), result.element_type
    axis = numbers.output_feature_dimension
    groups = number(op, "feature_group_count")
    split = [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]]
    places = {numbers.input_batch_dimension: numbers.output_batch_dimension,
              numbers.input_feature_dimension: axis}  # fmt: skip
    spatial = zip(numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
    places |= dict(spatial)
    source, kernel = (_convert(value, element) for value in op.operands)
    dimensions = [places[i] + (places[i] > axis) for i in range(len(shape))]
    weights = stablehlo.reshape(ir.RankedTensorType.get(split[axis : axis + 2], element), kernel)
    type_ = ir.RankedTensorType.get(split, element)
    product = stablehlo.multiply(
        stablehlo.broadcast_in_dim(type_, source, _axes(dimensions)),
        stablehlo.broadcast_in_dim(type_, weights, _axes([axis, axis + 1])),
    )
    return stablehlo.reshape(result, product)


def _numbers(op: Any) -> Any:
    return stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])


def _shape(value: Any) -> list[int]:
    return list(value.type.shape)


def _axes(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)


def _convert(value: Any, element: ir.Type) -> Any:
    wanted = ir.RankedTensorType.get(_shape(value), element)
    return value if value.type == wanted else stablehlo.convert(wanted, value)
