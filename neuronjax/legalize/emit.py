"""Writes StableHLO ops in place: at an insertion point, with the replaced op's location."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from neuronjax.jaxlib_api.mlir import OpOrView, ir, stablehlo

_UNSIGNED_32 = "ui32"
_VIEWS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


def element_type(value: ir.Value | ir.Type) -> str:
    """Element type of a value as StableHLO writes it; ``""`` if it is not a tensor (a token)."""
    type_ = value if isinstance(value, ir.Type) else value.type
    return str(ir.RankedTensorType(type_).element_type) if is_tensor(type_) else ""


def is_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType)


def shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


def with_element_type(type_: ir.Type, element: str) -> ir.Type:
    """The tensor type of the same shape with another element type."""
    return ir.RankedTensorType.get(list(ir.RankedTensorType(type_).shape), ir.Type.parse(element))


def convert(value: ir.Value, element: str) -> ir.Value:
    """``value`` converted to an element type; itself if it has that type already."""
    if element_type(value) == element:
        return value
    return stablehlo.ConvertOp(with_element_type(value.type, element), value).result


def filled(like: ir.Value, element: str, number: float) -> ir.Value:
    """A tensor of the shape of ``like`` with ``number`` everywhere."""
    type_ = with_element_type(like.type, element)
    kind = ir.Type.parse(element)
    is_float = element.startswith(("f", "b"))
    attribute = ir.FloatAttr.get(kind, number) if is_float else ir.IntegerAttr.get(kind, number)
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(type_, attribute)).result


def counter(like: ir.Value) -> ir.Value:
    """ui32 numbers from 0 on, in row-major order, of the shape of ``like``."""
    dims = shape(like)
    unsigned = ir.Type.parse(_UNSIGNED_32)
    flat = ir.RankedTensorType.get([int(np.prod(dims, dtype=np.int64))], unsigned)
    numbers = stablehlo.IotaOp(flat, 0).result
    return stablehlo.ReshapeOp(ir.RankedTensorType.get(list(dims), unsigned), numbers).result


def broadcast(scalar: ir.Value, like: ir.Value) -> ir.Value:
    """A scalar in the shape of ``like``."""
    type_ = with_element_type(like.type, element_type(scalar))
    dims = ir.DenseI64ArrayAttr.get([])
    return stablehlo.BroadcastInDimOp(type_, scalar, dims).result


def made_by(value: ir.Value, *names: str) -> ir.OpView | None:
    """The operation that makes a value, if it has one of these names."""
    owner = value.owner
    return owner if not isinstance(owner, ir.Block) and owner.name in names else None


def number_of(value: ir.Value) -> float | None:
    """The number that fills a tensor, also one that was broadcast."""
    while (view := made_by(value, *_VIEWS)) is not None:
        value = view.operands[0]
    made = made_by(value, "stablehlo.constant")
    if made is None or not isinstance(made.attributes["value"], ir.DenseFPElementsAttr):
        return None
    numbers = ir.DenseFPElementsAttr(made.attributes["value"])
    return float(ir.FloatAttr(numbers.get_splat_value()).value) if numbers.is_splat else None


def clamp(value: ir.Value, least: float, greatest: float) -> ir.Value:
    """``value`` between two finite numbers; NaN stays."""
    element = element_type(value)
    limits = [filled(value, element, limit) for limit in (least, greatest)]
    return stablehlo.ClampOp(limits[0], value, limits[1]).result


class Tensor:
    """A StableHLO value with Python's operators, for algorithms of ``neuronjax.rounding``."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    def __and__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.AndOp(self.value, other.value).result)

    def __or__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.OrOp(self.value, other.value).result)

    def __xor__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.XorOp(self.value, other.value).result)

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.AddOp(self.value, other.value).result)

    def __sub__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.SubtractOp(self.value, other.value).result)

    def __mul__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.MulOp(self.value, other.value).result)

    def __lshift__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.ShiftLeftOp(self.value, other.value).result)

    def __rshift__(self, other: Tensor) -> Tensor:
        return Tensor(stablehlo.ShiftRightLogicalOp(self.value, other.value).result)

    def __lt__(self, other: Tensor) -> Tensor:
        return self._compare(other, "LT")

    def __gt__(self, other: Tensor) -> Tensor:
        return self._compare(other, "GT")

    def __eq__(self, other: Tensor) -> Tensor:  # type: ignore[override]
        return self._compare(other, "EQ")

    __hash__ = None  # type: ignore[assignment]

    def _compare(self, other: Tensor, direction: str) -> Tensor:
        how = stablehlo.ComparisonDirectionAttr.get(direction)
        return Tensor(stablehlo.CompareOp(self.value, other.value, how).result)


class StablehloLanes:
    """``neuronjax.rounding.Lanes`` that writes StableHLO at the current insertion point."""

    def bits(self, x: Tensor) -> Tensor:
        return self._bitcast(x, _UNSIGNED_32)

    def floats(self, bits: Tensor) -> Tensor:
        return self._bitcast(bits, "f32")

    def where(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return Tensor(stablehlo.SelectOp(condition.value, yes.value, no.value).result)

    def constant(self, number: int, like: Tensor) -> Tensor:
        return Tensor(filled(like.value, _UNSIGNED_32, number))

    def _bitcast(self, x: Tensor, element: str) -> Tensor:
        type_ = with_element_type(x.value.type, element)
        return Tensor(stablehlo.BitcastConvertOp(type_, x.value).result)


LANES = StablehloLanes()


def at(op: OpOrView) -> _At:
    """Context in which ops are written before ``op``, with its location."""
    return _At(ir.InsertionPoint(op), op.location)


def after(op: OpOrView) -> _At:
    """Context in which ops are written right after ``op``, with its location."""
    return _At(ir.InsertionPoint.after(op), op.location)


class _At:
    def __init__(self, point: ir.InsertionPoint, location: ir.Location) -> None:
        self._managers = (point, location)

    def __enter__(self) -> None:
        for manager in self._managers:
            manager.__enter__()

    def __exit__(self, *error: object) -> None:
        for manager in reversed(self._managers):
            manager.__exit__(*error)


def ops_of(module: ir.Module, names: Container[str] | None = None) -> list[ir.Operation]:
    """The ops of a module, all or those with one of ``names``, inner ops first."""
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if names is None or op.name in names:
            ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return ops


def recompute(op: ir.Operation, types: dict[str, str]) -> ir.Operation:
    """Replaces ``op`` by the same op on other element types, with conversions around it.

    Operands, results and the values inside its regions whose element type is a key of ``types``
    get the type it names; results are converted back. Returns the new op.
    """
    with at(op):
        operands = [
            convert(o, types.get(element_type(o), element_type(o))) if is_tensor(o.type) else o
            for o in op.operands
        ]
        results = [_replaced(result.type, types) for result in op.results]
        attributes = {name: op.attributes[name] for name in op.attributes}
        twin = ir.Operation.create(op.name, results, operands, attributes, regions=len(op.regions))
        for source, target in zip(op.regions, twin.regions, strict=True):
            for block in list(source.blocks):
                block.append_to(target)
            _retype(target, types)
        for old, new in zip(op.results, twin.results, strict=True):
            back = convert(new, element_type(old)) if is_tensor(old.type) else new
            old.replace_all_uses_with(back)
    op.erase()
    return twin


def _replaced(type_: ir.Type, types: dict[str, str]) -> ir.Type:
    element = element_type(type_)
    return with_element_type(type_, types[element]) if element in types else type_


def _retype(region: ir.Region, types: dict[str, str]) -> None:
    """Changes the element types of all values in a region of element-wise ops."""
    for block in region.blocks:
        for argument in block.arguments:
            argument.set_type(_replaced(argument.type, types))
        for op in list(block.operations):
            if op.operation.name == "stablehlo.constant":
                _convert_constant(op, types)
                continue
            for result in op.operation.results:
                result.set_type(_replaced(result.type, types))


def _convert_constant(op: stablehlo.ConstantOp, types: dict[str, str]) -> None:
    element = element_type(op.result)
    if element in types:
        with after(op):
            converted = convert(op.result, types[element])
            op.result.replace_all_uses_except(converted, converted.owner.operation)


def go_through(op: ir.Operation, element: str) -> None:
    """Makes a conversion go by way of another type."""
    with at(op):
        through = convert(op.operands[0], element)
        op.results[0].replace_all_uses_with(convert(through, element_type(op.results[0])))
    op.erase()
