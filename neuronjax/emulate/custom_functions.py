"""The functions of `custom_op` on arrays, as two tables: for integers and floating-point numbers.

Integers are exact and wrap in their dtype. Floating-point functions take and return float64. The
semantics are StableHLO's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.emulate.arithmetic import power
from neuronjax.program.operators import CustomFunction

Array = np.ndarray
Function = Callable[..., Array]
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def _bits(x: Array) -> int:
    return x.dtype.itemsize * 8


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _divide(x: Array, y: Array) -> Array:
    """Rounds towards zero; x / 0 is all ones, and the least integer divided by -1 is itself."""
    minus_one = _minus_one(y)
    safe = np.where((y == 0) | minus_one, y.dtype.type(1), y)
    floor = x // safe
    up = (floor * safe != x) & ((x < 0) != (safe < 0))
    quotient = np.where(minus_one, np.negative(x), floor + up)
    return np.where(y == 0, np.invert(np.zeros((), x.dtype)), quotient).astype(x.dtype)


def _minus_one(y: Array) -> Array:
    return y == -1 if y.dtype.kind == "i" else np.zeros(y.shape, bool)


def _remainder(x: Array, y: Array) -> Array:
    """Has the sign of x; the remainder by zero is x."""
    safe = np.where((y == 0) | _minus_one(y), y.dtype.type(1), y)
    return np.where(y == 0, x, np.fmod(x, safe))


def _power(x: Array, y: Array) -> Array:
    """Wrapping power by squaring; a negative power is 0 unless x is 1 or -1."""
    x, y = np.broadcast_arrays(x, y)
    result, base = np.ones_like(x), x.copy()
    rest = np.maximum(y, 0)
    while rest.any():
        result = np.where(rest & 1, result * base, result)
        base, rest = base * base, rest >> 1
    if y.dtype.kind == "u":
        return result
    signed = np.where(y & 1, x, np.abs(x))
    return np.where(y < 0, np.where(np.abs(x) == 1, signed, 0), result).astype(x.dtype)


def _multiply_high(x: Array, y: Array) -> Array:
    bits = _bits(x)
    if bits < 64:
        wide = np.int64 if x.dtype.kind == "i" else np.uint64
        product = x.astype(wide) * y.astype(wide)
        return (product >> product.dtype.type(bits)).astype(x.dtype)
    x, y = np.broadcast_arrays(x, y)
    high = _high_of_words(np.ascontiguousarray(x), np.ascontiguousarray(y)).view(x.dtype)
    if x.dtype.kind == "u":
        return high
    return high - np.where(x < 0, y, 0) - np.where(y < 0, x, 0)


def _high_of_words(x: Array, y: Array) -> Array:
    """The upper 64 bits of products of unsigned 64-bit integers, from four 32-bit halves."""
    a, b = _unsigned(x), _unsigned(y)
    low1, high1, low2, high2 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    middle = high1 * low2 + ((low1 * low2) >> _HALF)
    rest = low1 * high2 + (middle & _LOW)
    return high1 * high2 + (middle >> _HALF) + (rest >> _HALF)


def _leading_zeros(x: Array) -> Array:
    bits = _bits(x)
    filled = _unsigned(np.ascontiguousarray(x)).copy()
    step = 1
    while step < bits:
        filled |= filled >> filled.dtype.type(step)
        step *= 2
    return (bits - np.bitwise_count(filled).astype(np.int64)).astype(x.dtype)


def _shift(shift: Function, beyond: Function) -> Function:
    """A shift that gives `beyond(x)` for negative amounts and for those not below the width."""

    def shifted(x: Array, y: Array) -> Array:
        inside = (y >= 0) & (y < _bits(x))
        return np.where(inside, shift(x, np.where(inside, y, 0)), beyond(x)).astype(x.dtype)

    return shifted


def _right_logical(x: Array, y: Array) -> Array:
    x = np.ascontiguousarray(x)
    word = _unsigned(x)
    return np.right_shift(word, y.astype(word.dtype)).view(x.dtype)


def _right_arithmetic(x: Array, y: Array) -> Array:
    x = np.ascontiguousarray(x)
    return np.right_shift(x.view(f"i{x.dtype.itemsize}"), y.astype(f"i{x.dtype.itemsize}")).view(
        x.dtype
    )


def _sign_fill(x: Array) -> Array:
    return _right_arithmetic(x, np.full((1, 1), _bits(x) - 1, x.dtype))


def _round_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _float_sign(x: Array) -> Array:
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(1.0, x))


def _select(predicate: Array, on_true: Array, on_false: Array) -> Array:
    return np.where(predicate != 0, on_true, on_false)


_BOTH: Mapping[CustomFunction, Function] = {
    CustomFunction.ABS: np.abs,
    CustomFunction.ADD: np.add,
    CustomFunction.COMPARE_EQ: np.equal,
    CustomFunction.COMPARE_GE: np.greater_equal,
    CustomFunction.COMPARE_GT: np.greater,
    CustomFunction.COMPARE_LE: np.less_equal,
    CustomFunction.COMPARE_LT: np.less,
    CustomFunction.COMPARE_NE: np.not_equal,
    CustomFunction.CONVERT: lambda x: x,
    CustomFunction.MAXIMUM: np.maximum,
    CustomFunction.MINIMUM: np.minimum,
    CustomFunction.MULTIPLY: np.multiply,
    CustomFunction.NEGATE: np.negative,
    CustomFunction.SELECT: _select,
    CustomFunction.SUBTRACT: np.subtract,
}

INTEGER: Mapping[CustomFunction, Function] = {
    **_BOTH,
    CustomFunction.AND: np.bitwise_and,
    CustomFunction.COUNT_LEADING_ZEROS: _leading_zeros,
    CustomFunction.DIVIDE: _divide,
    CustomFunction.MULTIPLY_HIGH: _multiply_high,
    CustomFunction.NOT: np.invert,
    CustomFunction.OR: np.bitwise_or,
    CustomFunction.POPCNT: lambda x: np.bitwise_count(_unsigned(np.ascontiguousarray(x))),
    CustomFunction.POWER: _power,
    CustomFunction.REMAINDER: _remainder,
    CustomFunction.SHIFT_LEFT: _shift(np.left_shift, np.zeros_like),
    CustomFunction.SHIFT_RIGHT_ARITHMETIC: _shift(_right_arithmetic, _sign_fill),
    CustomFunction.SHIFT_RIGHT_LOGICAL: _shift(_right_logical, np.zeros_like),
    CustomFunction.SIGN: np.sign,
    CustomFunction.XOR: np.bitwise_xor,
}
"""Custom function -> function of integer arrays of one dtype."""

FLOAT: Mapping[CustomFunction, Function] = {
    **_BOTH,
    CustomFunction.ATAN2: np.arctan2,
    CustomFunction.CBRT: np.cbrt,
    CustomFunction.CEIL: np.ceil,
    CustomFunction.COSINE: np.cos,
    CustomFunction.DIVIDE: np.divide,
    CustomFunction.EXPONENTIAL_MINUS_ONE: np.expm1,
    CustomFunction.FLOOR: np.floor,
    CustomFunction.IS_FINITE: np.isfinite,
    CustomFunction.LOG_PLUS_ONE: np.log1p,
    CustomFunction.POWER: power,
    CustomFunction.REMAINDER: np.fmod,
    CustomFunction.ROUND_NEAREST_AFZ: _round_away,
    CustomFunction.ROUND_NEAREST_EVEN: np.rint,
    CustomFunction.SIGN: _float_sign,
    CustomFunction.SINE: np.sin,
    CustomFunction.TAN: np.tan,
}
"""Custom function -> function of float64 arrays."""


def to_odd(x: Array) -> Array:
    """float64 -> float32 by rounding to odd, so that a second rounding is still correct."""
    near = x.astype(np.float32)
    code = near.view(np.uint32)
    inexact = (near != x) & np.isfinite(x)
    code = code - (inexact & (np.abs(near) > np.abs(x))).astype(np.uint32)
    return (code | inexact.astype(np.uint32)).view(np.float32)
