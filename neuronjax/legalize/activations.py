"""Activation functions that a program spells out: one instruction of the Scalar engine.

The engine casts what it reads to FP32, evaluates the function, and rounds once, to the type that it
writes. What was rounded between the operations that spell it out is not rounded on the chip.
"""

from __future__ import annotations

import math
from typing import Any

from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize.emit import at, convert, element_type, filled, ops_of
from neuronjax.legalize.op_sets import NARROW_FLOATS
from neuronjax.legalize.policy import Policy

_VIEWS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_TANH = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_TOLERANCE = 1e-2
"""Of constants, which may be rounded to BF16, and of products of two of them."""
_MOST = 4
"""Factors of a product that are looked at."""


def compose(module: ir.Module, policy: Policy) -> None:
    """Makes functions of narrow floats functions of FP32, rounded once; in place.

    They are 1 / (1 + exp(-x)) and x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.
    """
    for op in ops_of(module, frozenset({"stablehlo.divide", "stablehlo.multiply"})):
        element = element_type(op.results[0])
        if element not in NARROW_FLOATS:
            continue
        operand, write = _OPERANDS[op.name]
        x = operand(op)
        if x is None:
            continue
        with at(op):
            result = convert(write(convert(x, "f32")), element)
            op.results[0].replace_all_uses_with(result)
        op.erase()


def _logistic(x: Any) -> Any:
    return stablehlo.LogisticOp(x).result


def _gelu(x: Any) -> Any:
    """x / (1 + exp(-2z)), which is x · (1 + tanh(z)) / 2 without the cancellation."""
    square = stablehlo.MulOp(x, x).result
    cubic = stablehlo.MulOp(stablehlo.MulOp(square, x).result, filled(x, "f32", _CUBIC)).result
    inner = stablehlo.AddOp(x, cubic).result
    twice = stablehlo.MulOp(inner, filled(x, "f32", 2 * _TANH)).result
    return stablehlo.MulOp(x, _logistic(twice)).result


def _logistic_operand(op: Any) -> Any | None:
    """The x of 1 / (1 + exp(-x))."""
    dividend, total = op.operands
    added = _made_by(total, "stablehlo.add")
    if added is None or not _is_one(dividend):
        return None
    for left, right in _both_ways(added):
        power = _made_by(left, "stablehlo.exponential")
        inverse = None if power is None else _made_by(power.operands[0], "stablehlo.negate")
        if inverse is not None and _is_one(right):
            return inverse.operands[0]
    return None


def _gelu_operand(op: Any) -> Any | None:
    """The x of x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    number, factors = _product(op.results[0])
    if len(factors) != 2 or not _near(number, 0.5):
        return None
    for x, total in (factors, factors[::-1]):
        added = _made_by(total, "stablehlo.add")
        for unit, other in _both_ways(added):
            made = _made_by(other, "stablehlo.tanh")
            if made is not None and _is_one(unit) and _is_tanh_of(made.operands[0], x):
                return x
    return None


def _is_tanh_of(value: Any, x: Any) -> bool:
    """Whether a value is √(2/π) (x + 0.044715 x³)."""
    number, factors = _product(value)
    if len(factors) != 1 or not _near(number, _TANH):
        return False
    for linear, cubic in _both_ways(_made_by(factors[0], "stablehlo.add")):
        coefficient, cubed = _product(cubic)
        if linear == x and _near(coefficient, _CUBIC) and cubed == (x, x, x):
            return True
    return False


def _product(value: Any, most: int = _MOST) -> tuple[float, tuple[Any, ...]]:
    """A value as a number times other values."""
    number = _number(value)
    if number is not None:
        return number, ()
    made = _made_by(value, "stablehlo.multiply")
    if made is None or most == 1:
        return 1.0, (value,)
    left, factors = _product(made.operands[0], most - 1)
    right, others = _product(made.operands[1], most - max(1, len(factors)))
    return left * right, (*factors, *others)


def _both_ways(op: Any | None) -> tuple[tuple[Any, ...], ...]:
    if op is None:
        return ()
    operands = tuple(op.operands)
    return operands, operands[::-1]


def _near(number: float, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=_TOLERANCE)


def _made_by(value: Any, *names: str) -> Any | None:
    """The operation that makes a value, if it has one of these names."""
    owner = value.owner
    return owner if not isinstance(owner, ir.Block) and owner.name in names else None


def _is_one(value: Any) -> bool:
    return _number(value) == 1


def _number(value: Any) -> float | None:
    """The number that fills a tensor."""
    while (view := _made_by(value, *_VIEWS)) is not None:
        value = view.operands[0]
    made = _made_by(value, "stablehlo.constant")
    if made is None:
        return None
    numbers = ir.DenseElementsAttr(made.attributes["value"])
    return float(ir.FloatAttr(numbers.get_splat_value()).value) if numbers.is_splat else None


_OPERANDS = {
    "stablehlo.divide": (_logistic_operand, _logistic),
    "stablehlo.multiply": (_gelu_operand, _gelu),
}
"""Last operation of what spells a function out -> what finds its operand, what writes it."""
