"""Activation functions are within a rounding of their value in FP64, over all magnitudes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from neuronjax.emulate.activations import ACTIVATIONS
from neuronjax.program.operators import Activation

POINTS = np.concatenate([
    np.linspace(-12, 12, 4001),
    np.logspace(-30, 1, 300),
    -np.logspace(-30, 1, 300),
]).astype(np.float32)  # fmt: skip
POSITIVE = np.abs(POINTS[POINTS != 0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def pdf(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu_dx(x: float) -> float:
    return sigmoid(x) + x * sigmoid(x) * sigmoid(-x)


def quick_dx(x: float) -> float:
    return sigmoid(1.702 * x) + 1.702 * x * sigmoid(1.702 * x) * sigmoid(-1.702 * x)


EXPECTED: dict[Activation, Callable[[float], float]] = {
    Activation.COPY: lambda x: x,
    Activation.SQUARE: lambda x: x * x,
    Activation.SIGMOID: sigmoid,
    Activation.RELU: lambda x: max(x, 0.0),
    Activation.PRELU: lambda x: x if x > 0 else 0.25 * x,
    Activation.GELU: lambda x: x * cdf(x),
    Activation.GELU_DX: lambda x: cdf(x) + x * pdf(x),
    Activation.GELU_APPRX_TANH: gelu_tanh,
    Activation.GELU_APPRX_SIGMOID: lambda x: x * sigmoid(1.702 * x),
    Activation.GELU_APPRX_SIGMOID_DX: quick_dx,
    Activation.SILU: lambda x: x * sigmoid(x),
    Activation.SILU_DX: silu_dx,
    Activation.TANH: math.tanh,
    Activation.SOFTPLUS: softplus,
    Activation.MISH: lambda x: x * math.tanh(softplus(x)),
    Activation.ERF: math.erf,
    Activation.ERF_DX: lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    Activation.EXP: math.exp,
    Activation.LOG: math.log,
    Activation.SIN: math.sin,
    Activation.ARCTAN: math.atan,
    Activation.SQRT: math.sqrt,
    Activation.RSQRT: lambda x: 1 / math.sqrt(x),
    Activation.RECIPROCAL: lambda x: 1 / x,
    Activation.SIGN: lambda x: float((x > 0) - (x < 0)),
    Activation.ABS: abs,
}
POSITIVE_ONLY = {Activation.LOG, Activation.SQRT, Activation.RSQRT, Activation.RECIPROCAL}
CANCELLING = {
    Activation.GELU_DX, Activation.SILU_DX, Activation.GELU_APPRX_SIGMOID_DX,
    Activation.GELU_APPRX_TANH,
}  # fmt: skip
"""Sums of nearly opposite terms about a zero: a relative error in FP64 as well."""


def test_every_function_is_there() -> None:
    assert set(ACTIVATIONS) == set(EXPECTED) == set(Activation)


@pytest.mark.parametrize("function", Activation, ids=lambda each: each.value)
def test_function(function: Activation) -> None:
    x = POSITIVE if function in POSITIVE_ONLY else POINTS
    with np.errstate(all="ignore"):
        found = ACTIVATIONS[function](x[None], np.full((1, 1), 0.25, np.float32))[0]
    expected = np.array([EXPECTED[function](float(each)) for each in x])
    step = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    error = np.abs(found.astype(np.float64) - expected) / step
    slack = 1e-9 / step if function in CANCELLING else 0.0
    assert found.dtype == np.float32
    assert np.all(error <= 0.501 + slack)


@pytest.mark.parametrize("function", Activation, ids=lambda each: each.value)
def test_nan_stays(function: Activation) -> None:
    x = np.full((1, 3), np.nan, np.float32)
    with np.errstate(all="ignore"):
        found = ACTIVATIONS[function](x, np.zeros((1, 1), np.float32))
    assert np.isnan(found).all()
