"""GELU and its derivative, which the Scalar engine has, in place of the operations of JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.expansions import Made, Reader
from neuronjax.hlo.gelu import TANH, Recogniser
from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import number_of
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.values.storage import NARROW_FLOATS

_TOLERANCE = 1e-6
"""The relative error of products of three constants in FP32."""


def _narrowest(value: Value) -> Value:
    """What a value was before it was widened, which changes no number."""
    while (op := value.producer) is not None and (
        (op.name == "convert" and _is_widening(op.operands[0].dtype, value.dtype))
        or (op.name == "reshape" and op.operands[0].shape == value.shape)
    ):
        (value,) = op.operands
    return value


def _is_widening(given: np.dtype, result: np.dtype) -> bool:
    return given.name in NARROW_FLOATS and result.name == "float32"


def _made(value: Value) -> Made[Value] | None:
    op = value.producer
    return None if op is None else Made(op.name, None, op.operands)


def _real_number(value: Value) -> float | None:
    number = number_of(value)
    return None if number is None or np.iscomplexobj(number) else float(number)


def _erfc_operand(value: Value) -> Value | None:
    op = value.producer
    return op.operands[0] if op is not None and op.name == "chlo.erfc" else None


_GELU = Recogniser(Reader(_made, _real_number), _erfc_operand, _TOLERANCE, _narrowest)


def forward(writer: Writer, op: Op) -> Sequence[Value] | None:
    """x · erfc(-x / √2) / 2, and x · (1 + tanh(z)) / 2 or x / (1 + exp(-2z)), where z is
    √(2/π) (x + 0.044715 x³)."""
    product = _GELU.product(op.result)
    for tail, made in _GELU.makers(product):
        rest = product.without(tail)
        if made.name == "logistic" and _GELU.is_near(product.number, 1.0) and rest:
            (x, *others) = rest.elements()
            if not others and _GELU.is_cubic(made.operands[0], 2 * TANH, x):
                return [writer.add("gelu_apprx_tanh", writer.convert(x, op.result.dtype))]
    for name, find in (("gelu", _GELU.gelu), ("gelu_apprx_tanh", _GELU.gelu_of_tanh)):
        if (argument := find(product)) is not None:
            return [writer.add(name, writer.convert(argument, op.result.dtype))]
    return None


def derivative(writer: Writer, op: Op) -> Sequence[Value] | None:
    """g · erfc(-x / √2) / 2 + g · x · exp(-x² / 2) / √(2π), for any product g."""
    parts = _GELU.derivative(*op.operands)
    if parts is None:
        return None
    x, factors, number = parts
    gradient = _written(writer, op, factors, number)
    slope = writer.add("gelu_dx", writer.convert(x, op.result.dtype))
    return [slope if gradient is None else writer.add("multiply", gradient, slope)]


def _written(writer: Writer, op: Op, factors: Counter[Value], number: float) -> Value | None:
    """A product of values of one shape; None: it is 1."""
    total = None
    for factor in factors.elements():
        value = writer.convert(factor, op.result.dtype)
        total = value if total is None else writer.add("multiply", total, value)
    if _GELU.is_near(number, 1):
        return total
    constant = writer.constant(np.float32(number), op.result)
    return constant if total is None else writer.add("multiply", total, constant)
