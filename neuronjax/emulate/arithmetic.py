"""Operators of the element-wise engines on arrays, as tables.

Arithmetic is float32 in and out; powers and roots are computed in float64 and rounded once. Bit
operators take integers of one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.program.operators import BITVECTOR, UNARY, AluOp

Array = np.ndarray
Binary = Callable[[Array, Array], Array]


def once_rounded(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function computed in float64, with its result rounded to float32."""

    def rounded(*arrays: Array) -> Array:
        return function(*(array.astype(np.float64) for array in arrays)).astype(np.float32)

    return rounded


def power(x: Array, y: Array) -> Array:
    """IEEE 754's pow. For one exponent of 0.5 that is broadcast numpy takes the square root, which
    differs for -0 and -inf."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.power(x, np.array(np.broadcast_to(y, shape)))


def truth(function: Binary) -> Binary:
    """The results of a comparison as 0.0 and 1.0."""
    return lambda x, y: function(x, y).astype(np.float32)


def _shift_left(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


def _shift_right(x: Array, y: Array) -> Array:
    """Arithmetic for signed integers, logical for unsigned ones."""
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    beyond = np.right_shift(x, bits - 1) if x.dtype.kind == "i" else np.zeros_like(x)
    return np.where(inside, np.right_shift(x, np.where(inside, y, 0)), beyond)


ARITHMETIC: Mapping[AluOp, Binary] = {
    AluOp.ADD: np.add,
    AluOp.SUBTRACT: np.subtract,
    AluOp.MULTIPLY: np.multiply,
    AluOp.MAXIMUM: np.maximum,
    AluOp.MINIMUM: np.minimum,
    AluOp.EQUAL: truth(np.equal),
    AluOp.NOT_EQUAL: truth(np.not_equal),
    AluOp.GREATER_EQUAL: truth(np.greater_equal),
    AluOp.GREATER: truth(np.greater),
    AluOp.LESS_EQUAL: truth(np.less_equal),
    AluOp.LESS: truth(np.less),
    AluOp.LOGICAL_AND: truth(np.logical_and),
    AluOp.LOGICAL_OR: truth(np.logical_or),
    AluOp.LOGICAL_XOR: truth(np.logical_xor),
    AluOp.POWER: once_rounded(power),
    AluOp.ABS_MAX: lambda x, y: np.maximum(np.abs(x), np.abs(y)),
    AluOp.ABS_MIN: lambda x, y: np.minimum(np.abs(x), np.abs(y)),
    AluOp.ABS: lambda x, _: np.abs(x),
    AluOp.SQUARE: lambda x, _: np.square(x),
    AluOp.RELU: lambda x, _: np.maximum(x, np.zeros((), x.dtype)),
    AluOp.RSQRT: lambda x, _: once_rounded(lambda wide: 1 / np.sqrt(wide))(x),
    AluOp.RECIPROCAL: lambda x, _: np.reciprocal(x),
    AluOp.BYPASS: lambda x, _: x,
}
"""Operator -> function of two float32 arrays that broadcast; unary ones ignore the second."""

BITS: Mapping[AluOp, Binary] = {
    AluOp.INVERT: lambda x, _: np.invert(x),
    AluOp.BITWISE_AND: np.bitwise_and,
    AluOp.BITWISE_OR: np.bitwise_or,
    AluOp.BITWISE_XOR: np.bitwise_xor,
    AluOp.LEFT_SHIFT: _shift_left,
    AluOp.RIGHT_SHIFT: _shift_right,
}
"""Operator -> function of integer arrays of one dtype."""

EXACT: Mapping[AluOp, Binary] = {
    **ARITHMETIC,
    **BITS,
    AluOp.POWER: lambda x, y: np.where(y < 0, 0, np.power(x, np.maximum(y, 0))),
}
"""Operator -> function of 64-bit integers, whose lower bits are the wrapped result."""

_REDUCTIONS: Mapping[AluOp, Callable[[Array], Array]] = {
    AluOp.ADD: lambda x: np.add.reduce(x, axis=-1),
    AluOp.MULTIPLY: lambda x: np.multiply.reduce(x, axis=-1),
    AluOp.MAXIMUM: lambda x: np.maximum.reduce(x, axis=-1),
    AluOp.MINIMUM: lambda x: np.minimum.reduce(x, axis=-1),
    AluOp.SUBTRACT: lambda x: x[..., 0] - np.add.reduce(x[..., 1:], axis=-1),
    AluOp.LOGICAL_AND: lambda x: np.logical_and.reduce(x, axis=-1).astype(x.dtype),
    AluOp.LOGICAL_OR: lambda x: np.logical_or.reduce(x, axis=-1).astype(x.dtype),
    AluOp.LOGICAL_XOR: lambda x: np.logical_xor.reduce(x, axis=-1).astype(x.dtype),
    AluOp.BITWISE_AND: lambda x: np.bitwise_and.reduce(x, axis=-1),
    AluOp.BITWISE_OR: lambda x: np.bitwise_or.reduce(x, axis=-1),
    AluOp.BITWISE_XOR: lambda x: np.bitwise_xor.reduce(x, axis=-1),
    AluOp.ABS_MAX: lambda x: np.maximum.reduce(np.abs(x), axis=-1),
    AluOp.ABS_MIN: lambda x: np.minimum.reduce(np.abs(x), axis=-1),
}

IDENTITIES: Mapping[AluOp, float] = {
    AluOp.MULTIPLY: 1.0,
    AluOp.MAXIMUM: -np.inf,
    AluOp.MINIMUM: np.inf,
    AluOp.ABS_MIN: np.inf,
}
"""Operator -> value of a reset accumulator, where that is not 0."""


def reduced(op: AluOp, values: Array) -> Array:
    """Reduces the last dimension by `op`. KeyError: the operator is not a reduction."""
    return _REDUCTIONS[op](values)


def is_bitwise(op: AluOp | None) -> bool:
    """Whether an operator works on bit patterns."""
    return op in BITVECTOR


def applied(op: AluOp, reverse: bool) -> Binary:
    """An arithmetic operator, its arguments swapped if `reverse`."""
    function = ARITHMETIC[op]
    if not reverse or op in UNARY:
        return function
    return lambda x, y: function(y, x)


def applied_to_bits(op: AluOp, reverse: bool) -> Binary:
    """A bit operator, its arguments swapped if `reverse`."""
    function = BITS[op]
    if not reverse or op in UNARY:
        return function
    return lambda x, y: function(y, x)
