"""Operations that lowering itself wrote, as MLIR: for those that are left to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value, refuse
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import ir, stablehlo

_NAMES = {dtype: name for name, dtype in ELEMENT_TYPES.items()}


def tensor_type(value: Value) -> ir.Type:
    """The type of a value."""
    return ir.RankedTensorType.get(value.shape, ir.Type.parse(_NAMES[value.dtype]))


def created(op: Op, operands: Sequence[ir.Value]) -> ir.Operation:
    """The operation of `operands`, at the insertion point. Its regions use nothing from around.

    UnsupportedProgramError: MLIR has no such operation, or an attribute of another kind.
    """
    new = ir.Operation.create(
        op.name if "." in op.name else f"stablehlo.{op.name}",
        results=[tensor_type(value) for value in op.results],
        operands=list(operands),
        attributes={name: _attribute(op, name) for name in op.attributes},
        regions=len(op.regions),
    )
    for source, region in zip(op.regions, new.regions, strict=True):
        _fill(region, source)
    return new


def _fill(region: Any, graph: Graph) -> None:
    types = [tensor_type(value) for value in graph.parameters]
    block = region.blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
    known: dict[Value, ir.Value] = dict(zip(graph.parameters, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in graph.operations:
            made = created(op, [known[value] for value in op.operands])
            known.update(zip(op.results, made.results, strict=True))
        stablehlo.return_([known[value] for value in graph.results])


def _attribute(op: Op, name: str) -> ir.Attribute:
    value = op.attributes[name]
    if name in _NAMED:
        return _NAMED[name](value)
    for kind, convert in _KINDS:
        if isinstance(value, kind):
            return convert(value)
    raise refuse(op, f"the host cannot run an operation with the attribute {name} = {value!r}")


_NAMED: Mapping[str, Callable[[Any], ir.Attribute]] = {
    "comparison_direction": lambda value: stablehlo.ComparisonDirectionAttr.get(value),
    "compare_type": lambda value: stablehlo.ComparisonTypeAttr.get(value),
    "dot_dimension_numbers": lambda value: stablehlo.DotDimensionNumbers.get(**value),
}
"""Attributes of types of their own."""


def _elements(array: np.ndarray) -> ir.Attribute:
    element = ir.Type.parse(_NAMES[array.dtype])
    kind = ir.RankedTensorType.get(array.shape, element)
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=kind)


_KINDS: tuple[tuple[type, Callable[[Any], ir.Attribute]], ...] = (
    (bool, lambda value: ir.BoolAttr.get(value)),
    (int, lambda value: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)),
    (tuple, lambda value: ir.DenseI64ArrayAttr.get(value)),
    (np.ndarray, _elements),
)
"""Python type of an attribute -> what makes it."""
