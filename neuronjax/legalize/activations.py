"""Activation functions that a program spells out: one instruction of the Scalar engine.

The engine casts what it reads to FP32, evaluates the function, and rounds once, to the type that it
writes. What was rounded between the operations that spell it out is not rounded on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from neuronjax.jaxlib_api.mlir import OpOrView, chlo, ir, stablehlo
from neuronjax.legalize.emit import at, convert, element_type, filled, made_by, number_of, ops_of
from neuronjax.legalize.erfc import erfc_operand
from neuronjax.legalize.op_sets import NARROW_FLOATS
from neuronjax.legalize.policy import Policy

_TANH = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_ERFC = -math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_TOLERANCE = 1e-2
"""Of constants, which may be rounded to BF16, and of products of three of them."""
_MOST = 8
"""Factors of a product that are looked at."""


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
    tail = chlo.ErfcOp(_times(x, _ERFC)).result
    return _times(tail, 0.5)


def _gelu(x: ir.Value) -> ir.Value:
    return stablehlo.MulOp(x, _normal(x)).result


def _gelu_gradient(x: ir.Value, *gradient: ir.Value) -> ir.Value:
    """g · (erfc(-x / √2) / 2 + x · exp(-x² / 2) / √(2π)); without a gradient g, of 1."""
    power = stablehlo.ExpOp(_times(stablehlo.MulOp(x, x).result, -0.5)).result
    density = _times(stablehlo.MulOp(x, power).result, _DENSITY)
    total = stablehlo.AddOp(_normal(x), density).result
    for factor in gradient:
        total = stablehlo.MulOp(total, factor).result
    return total


def _times(x: ir.Value, number: float) -> ir.Value:
    return stablehlo.MulOp(x, filled(x, "f32", number)).result


def _tanh_gelu(x: ir.Value) -> ir.Value:
    """x / (1 + exp(-2z)), which is x · (1 + tanh(z)) / 2 without the cancellation."""
    square = stablehlo.MulOp(x, x).result
    inner = stablehlo.AddOp(x, _times(stablehlo.MulOp(square, x).result, _CUBIC)).result
    return stablehlo.MulOp(x, _logistic(_times(inner, 2 * _TANH))).result


def _logistic_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of 1 / (1 + exp(-x))."""
    dividend, total = op.operands
    added = made_by(total, "stablehlo.add")
    if added is None or not _is_one(dividend):
        return None
    for left, right in _both_ways(added):
        power = made_by(left, "stablehlo.exponential")
        inverse = None if power is None else made_by(power.operands[0], "stablehlo.negate")
        if inverse is not None and _is_one(right):
            return (inverse.operands[0],)
    return None


def _gelu_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of x · erfc(-x / √2) / 2."""
    number, factors = _product(op.results[0])
    if len(factors) != 2 or not _near(number, 0.5):
        return None
    for x, tail in (factors, factors[::-1]):
        if _is_product(erfc_operand(tail), _ERFC, x):
            return (x,)
    return None


def _tanh_gelu_operand(op: ir.Operation) -> tuple[ir.Value, ...] | None:
    """The x of x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    number, factors = _product(op.results[0])
    if len(factors) != 2 or not _near(number, 0.5):
        return None
    for x, total in (factors, factors[::-1]):
        added = made_by(total, "stablehlo.add")
        for unit, other in _both_ways(added):
            made = made_by(other, "stablehlo.tanh")
            if made is not None and _is_one(unit) and _is_tanh_of(made.operands[0], x):
                return (x,)
    return None


def _gradient_operands(op: ir.Operation) -> _Operands | None:
    """The x, and the factors of g, of g · erfc(-x / √2) / 2 + g · x · exp(-x² / 2) / √(2π)."""
    for left, right in _both_ways(op):
        number, factors = _product(left)
        for tail in factors:
            argument = erfc_operand(tail)
            scale, inner = (0.0, ()) if argument is None else _product(argument)
            if len(inner) != 1 or not _near(scale, _ERFC):
                continue
            (x,), gradient = inner, _without(factors, tail)
            if _is_density(right, x, gradient, 2 * number):
                return (x, *gradient) if _near(number, 0.5) else (x, *gradient, 2 * number)
    return None


def _is_density(value: ir.Value, x: ir.Value, gradient: tuple[ir.Value, ...], scale: float) -> bool:
    """Whether a value is x · exp(-x² / 2) / √(2π) times a number and the factors of a gradient."""
    number, factors = _product(value)
    if not _near(number, scale * _DENSITY):
        return False
    for power in factors:
        made = made_by(power, "stablehlo.exponential")
        if made is not None and _is_product(made.operands[0], -0.5, x, x):
            return _is_same(_without(factors, power), (x, *gradient))
    return False


def _is_product(value: ir.Value | None, number: float, *factors: ir.Value) -> bool:
    if value is None:
        return False
    scale, others = _product(value)
    return _near(scale, number) and _is_same(others, factors)


def _is_same(factors: tuple[ir.Value, ...], others: tuple[ir.Value, ...]) -> bool:
    """Whether two products have the same factors, in any order."""
    for factor in factors:
        if factor not in others:
            return False
        others = _without(others, factor)
    return not others


def _without(factors: tuple[ir.Value, ...], factor: ir.Value) -> tuple[ir.Value, ...]:
    at_first = factors.index(factor)
    return (*factors[:at_first], *factors[at_first + 1 :])


def _is_tanh_of(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is √(2/π) (x + 0.044715 x³)."""
    number, factors = _product(value)
    if len(factors) != 1 or not _near(number, _TANH):
        return False
    for linear, cubic in _both_ways(made_by(factors[0], "stablehlo.add")):
        coefficient, cubed = _product(cubic)
        if linear == x and _near(coefficient, _CUBIC) and cubed == (x, x, x):
            return True
    return False


def _product(value: ir.Value, most: int = _MOST) -> tuple[float, tuple[ir.Value, ...]]:
    """A value as a number times other values."""
    number = number_of(value)
    if number is not None:
        return number, ()
    inverse = made_by(value, "stablehlo.negate")
    if inverse is not None:
        number, factors = _product(inverse.operands[0], most)
        return -number, factors
    made = made_by(value, "stablehlo.multiply")
    if made is None or most == 1:
        return 1.0, (value,)
    left, factors = _product(made.operands[0], most - 1)
    right, others = _product(made.operands[1], most - max(1, len(factors)))
    return left * right, (*factors, *others)


def _both_ways(op: OpOrView | None) -> tuple[tuple[ir.Value, ...], ...]:
    if op is None:
        return ()
    operands = tuple(op.operands)
    return operands, operands[::-1]


def _near(number: float, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=_TOLERANCE)


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
