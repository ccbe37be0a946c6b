"""Activation functions that a program spells out: one instruction of the Scalar engine.

The engine casts what it reads to FP32, evaluates the function, and rounds once, to the type that it
writes. What was rounded between the operations that spell it out is not rounded on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from neuronjax.hlo.gelu import CUBIC, DENSITY, ERFC, TANH, Recogniser
from neuronjax.jaxlib_api.mlir import chlo, ir, stablehlo
from neuronjax.legalize.emit import at, convert, element_type, filled, made_by, number_of, ops_of
from neuronjax.legalize.erfc import READER, erfc_operand
from neuronjax.legalize.op_sets import NARROW_FLOATS
from neuronjax.legalize.policy import Policy

_GELU = Recogniser(READER, erfc_operand, tolerance=1e-2)
"""Constants may be rounded to BF16, and products of three of them."""


def compose(module: ir.Module, policy: Policy) -> None:
    """Makes functions of narrow floats functions of FP32, rounded once; in place.

    They are 1 / (1 + exp(-x)), x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2,
    x · erfc(-x / √2) / 2, and the derivative of the last, times a gradient.
    """
    for op in ops_of(module, frozenset(_FORMS)):
        element = element_type(op.results[0])
        if element not in NARROW_FLOATS:
            continue
        for operands, write in _FORMS[op.name]:
            wide = operands(op)
            if wide is None:
                continue
            with at(op):
                result = convert(write(*(_wide(operand, wide[0]) for operand in wide)), element)
                op.results[0].replace_all_uses_with(result)
            op.erase()
            break


def _wide(operand: ir.Value | float, like: ir.Value) -> ir.Value:
    """A value, or a number as a tensor of the shape of `like`, in FP32."""
    is_number = isinstance(operand, float)
    return filled(like, "f32", operand) if is_number else convert(operand, "f32")


def _logistic(x: ir.Value) -> ir.Value:
    return stablehlo.LogisticOp(x).result


def _normal(x: ir.Value) -> ir.Value:
    """erfc(-x / √2) / 2, the share of the normal distribution below x."""
    tail = chlo.ErfcOp(_times(x, ERFC)).result
    return _times(tail, 0.5)


def _gelu(x: ir.Value) -> ir.Value:
    return stablehlo.MulOp(x, _normal(x)).result


def _gelu_gradient(x: ir.Value, *gradient: ir.Value) -> ir.Value:
    """g · (erfc(-x / √2) / 2 + x · exp(-x² / 2) / √(2π)); without a gradient g, of 1."""
    power = stablehlo.ExpOp(_times(stablehlo.MulOp(x, x).result, -0.5)).result
    density = _times(stablehlo.MulOp(x, power).result, DENSITY)
    total = stablehlo.AddOp(_normal(x), density).result
    for factor in gradient:
        total = stablehlo.MulOp(total, factor).result
    return total


def _times(x: ir.Value, number: float) -> ir.Value:
    return stablehlo.MulOp(x, filled(x, "f32", number)).result


def _tanh_gelu(x: ir.Value) -> ir.Value:
    """x / (1 + exp(-2z)), which is x · (1 + tanh(z)) / 2 without the cancellation."""
    square = stablehlo.MulOp(x, x).result
    inner = stablehlo.AddOp(x, _times(stablehlo.MulOp(square, x).result, CUBIC)).result
    return stablehlo.MulOp(x, _logistic(_times(inner, 2 * TANH))).result


def _logistic_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of 1 / (1 + exp(-x))."""
    dividend, total = op.operands
    if not _is_one(dividend):
        return None
    for left, right in _GELU.sums(total):
        power = made_by(left, "stablehlo.exponential")
        inverse = None if power is None else made_by(power.operands[0], "stablehlo.negate")
        if inverse is not None and _is_one(right):
            return (inverse.operands[0],)
    return None


def _gelu_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of x · erfc(-x / √2) / 2."""
    x = _GELU.gelu(_GELU.product(op.results[0]))
    return None if x is None else (x,)


def _tanh_gelu_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    x = _GELU.gelu_of_tanh(_GELU.product(op.results[0]))
    return None if x is None else (x,)


def _gradient_operands(op: ir.Operation) -> _Operands | None:
    """The x, and the factors of g, of g · erfc(-x / √2) / 2 + g · x · exp(-x² / 2) / √(2π)."""
    parts = _GELU.derivative(*op.operands)
    if parts is None:
        return None
    x, gradient, number = parts
    return (x, *gradient.elements(), *(() if _GELU.is_near(number, 1) else (number,)))


def _is_one(value: ir.Value) -> bool:
    return number_of(value) == 1


_Operands = tuple[ir.Value, *tuple[ir.Value | float, ...]]
_Form = tuple[Callable[[ir.Operation], _Operands | None], Callable[..., ir.Value]]
_FORMS: Mapping[str, Sequence[_Form]] = {
    "stablehlo.divide": ((_logistic_operand, _logistic),),
    "stablehlo.multiply": ((_tanh_gelu_operand, _tanh_gelu), (_gelu_operand, _gelu)),
    "stablehlo.add": ((_gradient_operands, _gelu_gradient),),
}
"""Last operation of what spells functions out -> what finds the operands, what writes it."""
