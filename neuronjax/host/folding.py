"""Constants that XLA:CPU must not fold, because it would fold them wrongly."""

from __future__ import annotations

from typing import Any

from neuronjax.jaxlib_api.mlir import ir, stablehlo

_CONVOLUTION, _BITS = "stablehlo.convolution", "stablehlo.bitcast_convert"


def keep_convolutions(module: ir.Module) -> None:
    """Makes the convolutions of constants run where bits are looked at, in place.

    XLA folds them to constants in a layout of their own, and a ``bitcast_convert`` of such a
    constant takes its elements in the wrong order. The roundings of the chip's numerics begin with
    one. Needs the module's MLIR context.
    """
    convolutions: list[Any] = []
    looks_at_bits = False

    def visit(op: Any) -> ir.WalkResult:
        nonlocal looks_at_bits
        looks_at_bits |= op.name == _BITS
        if op.name == _CONVOLUTION and all(map(_is_constant, op.operands)):
            convolutions.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in convolutions if looks_at_bits else ():
        with ir.InsertionPoint(op), op.location:
            kept = stablehlo.OptimizationBarrierOp([op.operands[0]])
        op.operands[0] = kept.results[0]


def _is_constant(value: Any) -> bool:
    """Whether a value is computed of constants alone."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if not isinstance(value, ir.OpResult):
            return False
        waiting.extend(value.owner.operands)
    return True
