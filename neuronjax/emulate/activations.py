"""Functions of the Scalar engine on float32 arrays, as a table.

The hardware evaluates piecewise polynomials that AWS does not publish. Here a function is computed
in float64 and rounded to float32 once: slightly more than 0.5 ULP at most, over its whole domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.emulate.arithmetic import once_rounded
from neuronjax.program.operators import Activation

Array = np.ndarray
Function = Callable[[Array, Array], Array]

_STEP = 1 / 256
_END = 28.0
_GRID = np.arange(0.0, _END + _STEP, _STEP)
_ERF = np.array([math.erf(x) for x in _GRID])
_ERFC = np.array([math.erfc(x) for x in _GRID])
_SLOPE = 2 / math.sqrt(math.pi) * np.exp(-(_GRID**2))
_FEW = 0.5
_GELU_TANH = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
_GELU_SIGMOID = 1.702


def _taylor(x: Array) -> tuple[Array, Array]:
    """The indices of the grid points nearest to x >= 0, and erf(x) - erf(point).

    Five terms of the Taylor series; the derivatives of erf are Hermite polynomials times its slope.
    """
    place = np.rint(np.minimum(np.nan_to_num(x), _END) / _STEP).astype(np.intp)
    point = _GRID[place]
    d = np.where(x > _END, 0.0, x - point)
    square = point * point
    series = 1 + d * (
        -point
        + d * (
            (2 * square - 1) / 3
            + d * (point * (3 - 2 * square) / 6 + d * ((4 * square - 12) * square + 3) / 30)
        )
    )  # fmt: skip
    return place, _SLOPE[place] * d * series


def erf(x: Array) -> Array:
    """The error function of float64 values, to a relative error of about 1e-13."""
    place, change = _taylor(np.abs(x))
    near = np.where(np.abs(x) < _FEW, _ERF[place] + change, 1 - (_ERFC[place] - change))
    return np.where(np.isnan(x), x, np.copysign(near, x))


def erfc(x: Array) -> Array:
    """1 - erf(x) of float64 values, to a relative error of about 1e-10."""
    place, change = _taylor(np.abs(x))
    tail = np.where(np.abs(x) > _END - 1, 0.0, _ERFC[place] - change)
    return np.where(np.isnan(x), x, np.where(x < 0, 2 - tail, tail))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _normal_cdf(x: Array) -> Array:
    return 0.5 * erfc(-x / math.sqrt(2))


def _normal_pdf(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _gelu_tanh(x: Array) -> Array:
    """x · (1 + tanh(z)) / 2, without the cancellation far below 0."""
    return x * _sigmoid(2 * _GELU_TANH * (x + _GELU_CUBIC * x**3))


def _gelu_sigmoid_dx(x: Array) -> Array:
    s = _sigmoid(_GELU_SIGMOID * x)
    return s + _GELU_SIGMOID * x * s * (1 - s)


def _silu_dx(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _wide(function: Callable[[Array], Array]) -> Function:
    rounded = once_rounded(function)
    return lambda x, _: rounded(x)


ACTIVATIONS: Mapping[Activation, Function] = {
    Activation.COPY: lambda x, _: x,
    Activation.SQUARE: lambda x, _: np.square(x),
    Activation.SIGMOID: _wide(_sigmoid),
    Activation.RELU: lambda x, _: np.maximum(x, np.float32(0)),
    Activation.PRELU: lambda x, slope: np.where(x > 0, x, x * slope),
    Activation.GELU: _wide(lambda x: x * _normal_cdf(x)),
    Activation.GELU_DX: _wide(lambda x: _normal_cdf(x) + x * _normal_pdf(x)),
    Activation.GELU_APPRX_TANH: _wide(_gelu_tanh),
    Activation.GELU_APPRX_SIGMOID: _wide(lambda x: x * _sigmoid(_GELU_SIGMOID * x)),
    Activation.GELU_APPRX_SIGMOID_DX: _wide(_gelu_sigmoid_dx),
    Activation.SILU: _wide(lambda x: x * _sigmoid(x)),
    Activation.SILU_DX: _wide(_silu_dx),
    Activation.TANH: _wide(np.tanh),
    Activation.SOFTPLUS: _wide(_softplus),
    Activation.MISH: _wide(lambda x: x * np.tanh(_softplus(x))),
    Activation.ERF: _wide(erf),
    Activation.ERF_DX: _wide(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    Activation.EXP: _wide(np.exp),
    Activation.LOG: _wide(np.log),
    Activation.SIN: _wide(np.sin),
    Activation.ARCTAN: _wide(np.arctan),
    Activation.SQRT: lambda x, _: np.sqrt(x),
    Activation.RSQRT: _wide(lambda x: 1 / np.sqrt(x)),
    Activation.RECIPROCAL: lambda x, _: np.reciprocal(x),
    Activation.SIGN: lambda x, _: np.sign(x),
    Activation.ABS: lambda x, _: np.abs(x),
}
"""Activation -> function of float32 [partitions, elements] and of the slope, which `prelu` uses."""
