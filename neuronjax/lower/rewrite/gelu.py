"""GELU and its derivative, which the Scalar engine has, in the operations that JAX makes of them.

Source of the formulas: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import number_of
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.values.storage import NARROW_FLOATS

_MOST = 8
"""Factors of a product that are looked at."""
_TOLERANCE = 1e-6
"""The relative error of products of three constants in FP32."""

_ERFC = -math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_TANH = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@dataclass(frozen=True)
class Product:
    """A value as a number times other values, each as often as it is a factor."""

    number: float
    factors: Counter[Value]

    def times(self, other: Product) -> Product:
        return Product(self.number * other.number, self.factors + other.factors)

    def without(self, *values: Value) -> Counter[Value] | None:
        """The factors that are left; None: one of `values` is no factor."""
        left = self.factors.copy()
        for value in values:
            if not left[value]:
                return None
            left[value] -= 1
        return +left

    def is_about(self, number: float, *values: Value) -> bool:
        """Whether it is `number` times `values`, and nothing else."""
        return _near(self.number, number) and self.factors == Counter(values)


def _near(number: float, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=_TOLERANCE)


def narrowest(value: Value) -> Value:
    """What a value was before it was widened, which changes no number."""
    while (op := value.producer) is not None and (
        (op.name == "convert" and _is_widening(op.operands[0].dtype, value.dtype))
        or (op.name == "reshape" and op.operands[0].shape == value.shape)
    ):
        (value,) = op.operands
    return value


def _is_widening(given: np.dtype, result: np.dtype) -> bool:
    return given.name in NARROW_FLOATS and result.name == "float32"


def product_of(value: Value, most: int = _MOST) -> Product:
    """A value taken apart into at most about `most` factors."""
    number = number_of(value)
    if number is not None and np.isrealobj(number):
        return Product(float(number), Counter())
    value = narrowest(value)
    op = value.producer
    if op is not None and op.name == "negate":
        return Product(-1.0, Counter()).times(product_of(op.operands[0], most))
    if op is not None and op.name == "multiply" and most > 1:
        left = product_of(op.operands[0], most - 1)
        return left.times(product_of(op.operands[1], most - max(1, left.factors.total())))
    return Product(1.0, Counter([value]))


def _arguments(product: Product, name: str) -> list[tuple[Value, Value]]:
    """The factors that an operation makes, with its operand."""
    return [
        (factor, factor.producer.operands[0])
        for factor in product.factors
        if factor.producer is not None and factor.producer.name == name
    ]


def forward(writer: Writer, op: Op) -> Sequence[Value] | None:
    """x · erfc(-x / √2) / 2, and x · (1 + tanh(z)) / 2 or x / (1 + exp(-2z)), where z is
    √(2/π) (x + 0.044715 x³)."""
    product = product_of(op.result)
    for tail, argument in _arguments(product, "logistic"):
        for x in product.without(tail) or ():
            if product.is_about(1.0, x, tail) and _is_cubic(product_of(argument), 2 * _TANH, x):
                return [writer.add("gelu_apprx_tanh", writer.convert(x, op.result.dtype))]
    if product.factors.total() != 2 or not _near(product.number, 0.5):
        return None
    for tail, argument in _arguments(product, "chlo.erfc"):
        for x in product.without(tail) or ():
            if product_of(argument).is_about(_ERFC, x):
                return [writer.add("gelu", writer.convert(x, op.result.dtype))]
    for tail, _ in _arguments(product, "add"):
        for x in product.without(tail) or ():
            if _is_one_and_tanh(tail, x):
                return [writer.add("gelu_apprx_tanh", writer.convert(x, op.result.dtype))]
    return None


def _is_one_and_tanh(total: Value, x: Value) -> bool:
    """Whether a sum is 1 + tanh(√(2/π) (x + 0.044715 x³))."""
    assert total.producer is not None
    for constant, other in _both_ways(total.producer):
        made = narrowest(other).producer
        if number_of(constant) != 1 or made is None or made.name != "tanh":
            continue
        if _is_cubic(product_of(made.operands[0]), _TANH, x):
            return True
    return False


def _is_cubic(product: Product, number: float, x: Value) -> bool:
    """Whether a product is number · (x + 0.044715 x³)."""
    sums = [total for total, _ in _arguments(product, "add")]
    if len(sums) != 1 or not product.is_about(number, *sums):
        return False
    assert sums[0].producer is not None
    return any(
        narrowest(linear) is x and product_of(cubic).is_about(_CUBIC, x, x, x)
        for linear, cubic in _both_ways(sums[0].producer)
    )


def derivative(writer: Writer, op: Op) -> Sequence[Value] | None:
    """g · erfc(-x / √2) / 2 + g · x · exp(-x² / 2) / √(2π), for any product g."""
    for left, right in _both_ways(op):
        tail = product_of(left)
        for erfc, argument in _arguments(tail, "chlo.erfc"):
            scaled = product_of(argument)
            if scaled.factors.total() != 1 or not _near(scaled.number, _ERFC):
                continue
            (x,) = scaled.factors
            outer = tail.without(erfc)
            if outer is not None and _is_density(product_of(right), x, outer, tail.number * 2):
                gradient = _written(writer, op, outer, tail.number * 2)
                slope = writer.add("gelu_dx", writer.convert(x, op.result.dtype))
                return [slope if gradient is None else writer.add("multiply", gradient, slope)]
    return None


def _is_density(product: Product, x: Value, outer: Counter[Value], number: float) -> bool:
    """Whether a product is number · outer · x · exp(-x² / 2) / √(2π)."""
    if not _near(product.number, number * _DENSITY):
        return False
    return any(
        product.without(x, power) == outer and product_of(exponent).is_about(-0.5, x, x)
        for power, exponent in _arguments(product, "exponential")
    )


def _written(writer: Writer, op: Op, factors: Counter[Value], number: float) -> Value | None:
    """A product of values of one shape; None: it is 1."""
    total = None
    for factor in factors.elements():
        value = writer.convert(factor, op.result.dtype)
        total = value if total is None else writer.add("multiply", total, value)
    if _near(number, 1):
        return total
    constant = writer.constant(np.float32(number), op.result)
    return constant if total is None else writer.add("multiply", total, constant)


def _both_ways(op: Op) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    left, right = op.operands
    return (left, right), (right, left)
