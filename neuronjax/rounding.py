"""Rounding to a number format: a scalar oracle, and its array twin.

The oracle, `round_scalar`, works in exact arithmetic and is the definition. The twin, `nearest` and
`stochastic`, maps FP32 arrays to FP32 arrays whose values lie on the target's grid, so that a later
conversion to the narrow type is exact. It is written once, as bit operations on unsigned 32-bit
integers, for every library that provides `Lanes`: numpy, JAX, or an emitter of StableHLO.

The rules (Neuron docs, "Rounding modes", "Data types"; NKI ISA):

* nearest: to the nearest value, ties to the one with the even code. Between powers of two
  (float8_e8m0fnu), where both have an odd significand, ties go up (IEEE 754-2019, 4.3.1).
* stochastic: to one of the two neighbours, to either with the probability that makes the expected
  result equal the value. The documents name neither the generator nor the number of random bits of
  the hardware: here it is 32 bits per value, in the subnormal range too.
* beyond the largest value: infinity by default, NaN where the format has no infinity, the largest
  value where it has no NaN either; or "saturate": always the largest value, for infinities too
  (OCP 8-bit Floating Point Specification 1.0, saturating conversion).
* flushing of subnormals is undocumented: a switch, off by default. It makes zero, with the value's
  sign, of results that are subnormal in the target.
* NaN stays NaN, also in float4_e2m1fn, which has none: the conversion that follows decides.
  float8_e8m0fnu, which has neither zero nor sign, makes NaN of zero and of negative values and the
  smallest value of what lies below it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.formats import FLOAT32, Format

Mode = Literal["nearest", "stochastic"]
Overflow = Literal["infinity", "saturate"]

RANDOM_BITS = 32
"""Random bits per stochastic rounding."""


def round_scalar(
    value: float | Fraction,
    form: Format,
    *,
    mode: Mode = "nearest",
    random: int = 0,
    overflow: Overflow = "infinity",
    flush_subnormals: bool = False,
) -> float:
    """`value` rounded to `form`, in exact arithmetic: the definition, slow.

    Args:
      value: any number; a float may be NaN, infinite or a signed zero.
      form: the target.
      mode: "nearest" or "stochastic".
      random: for "stochastic", an integer below 2**32. The result is the neighbour away from zero
        if it is less than floor(f * 2**32), f being the distance from the other neighbour in ULP.
      overflow: "infinity" or "saturate".
      flush_subnormals: whether subnormal results become zero.
    """
    sign = math.copysign(1.0, value)
    if math.isnan(value) or (sign < 0 and not form.signed) or (value == 0 and not form.has_zero):
        return math.nan
    if math.isinf(value):
        return sign * _beyond(form, overflow)
    magnitude = abs(Fraction(value))
    if not form.has_zero:
        magnitude = max(magnitude, Fraction(form.smallest_normal))
    exponent = max(_exponent(magnitude), form.min_exponent)
    ulp = Fraction(2) ** (exponent - form.mantissa_bits)
    steps, rest = divmod(magnitude, ulp)
    if _goes_up(rest / ulp, is_odd=steps % 2 == 1, mode=mode, random=random):
        steps += 1
    rounded = steps * ulp
    if rounded > Fraction(form.max):
        return sign * _beyond(form, overflow)
    if flush_subnormals and rounded < Fraction(form.smallest_normal):
        return sign * 0.0
    return sign * float(rounded)


def _exponent(magnitude: Fraction) -> int:
    """floor(log2(magnitude)); a very small number for zero."""
    if magnitude == 0:
        return -(1 << 30)
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if magnitude >= Fraction(2) ** guess else guess - 1


def _goes_up(fraction: Fraction, *, is_odd: bool, mode: Mode, random: int) -> bool:
    if mode == "stochastic":
        return random < math.floor(fraction * (1 << RANDOM_BITS))
    return fraction > Fraction(1, 2) or (fraction == Fraction(1, 2) and is_odd)


def _beyond(form: Format, overflow: Overflow) -> float:
    """What becomes of magnitudes beyond the largest value."""
    if overflow == "saturate" or not form.has_nan:
        return form.max
    return math.inf if form.has_infinity else math.nan


class Lanes(Protocol):
    """What the array twin needs of a library of arrays.

    Arrays are of unsigned 32-bit integers, of FP32, or of truth values, all of one shape, and know
    Python's operators among their own kind: on integers ``& | ^ + - * << >> < > ==``, wrapping.
    Shift amounts are below 32. FP32 arrays are only looked at as bits.
    """

    def bits(self, x: Any) -> Any:
        """The bits of FP32 values as unsigned integers."""
        ...

    def floats(self, bits: Any) -> Any:
        """The FP32 values with those bits."""
        ...

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Per lane, `yes` if `condition`, else `no`; both are integers."""
        ...

    def constant(self, number: int, like: Any) -> Any:
        """`number` (below 2**32) in every lane of an array as `like`, which holds integers."""
        ...


class _NumpyLanes:
    """Lanes of numpy arrays. Wrapping 0-d arrays makes numpy warn: give those one dimension."""

    def bits(self, x: Any) -> Any:
        return np.asarray(x, np.float32).view(np.uint32)

    def floats(self, bits: Any) -> Any:
        return np.asarray(bits, np.uint32).view(np.float32)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        return np.where(condition, yes, no)

    def constant(self, number: int, like: Any) -> Any:
        return np.full((1,) * np.ndim(like), number, np.uint32)


class _JaxLanes:
    """Lanes of JAX arrays, traced or not."""

    def bits(self, x: Any) -> Any:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)

    def floats(self, bits: Any) -> Any:
        return jax.lax.bitcast_convert_type(bits, jnp.float32)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        return jnp.where(condition, yes, no)

    def constant(self, number: int, like: Any) -> Any:
        return jax.lax.full_like(like, number)


NUMPY: Lanes = _NumpyLanes()
JAX: Lanes = _JaxLanes()

_SIGN = 1 << 31
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_HALF = 1 << 31
_MANTISSA = FLOAT32.mantissa_bits
_LEADING_ONE = 1 << _MANTISSA


def nearest(
    lanes: Lanes,
    x: Any,
    form: Format,
    *,
    overflow: Overflow = "infinity",
    flush_subnormals: bool = False,
) -> Any:
    """FP32 values rounded to the nearest of `form`, ties to even; FP32, of the same shape."""
    return _rounded(lanes, x, None, form, overflow, flush_subnormals)


def stochastic(
    lanes: Lanes,
    x: Any,
    random: Any,
    form: Format,
    *,
    overflow: Overflow = "infinity",
    flush_subnormals: bool = False,
) -> Any:
    """FP32 values rounded up or down at random, unbiased; FP32, of the same shape.

    `random` holds 32 random bits for each value, as unsigned integers. Values of `form` stay.
    """
    return _rounded(lanes, x, random, form, overflow, flush_subnormals)


def _rounded(
    lanes: Lanes, x: Any, random: Any | None, form: Format, overflow: Overflow, flush: bool
) -> Any:
    bits = lanes.bits(x)

    def constant(number: int) -> Any:
        return lanes.constant(number, bits)

    sign = bits & constant(_SIGN)
    magnitude = bits & constant(_SIGN - 1)
    result = _on_grid(lanes, magnitude, random, form)
    beyond = _bits_of(_beyond(form, overflow))
    result = lanes.where(result > constant(_bits_of(form.max)), constant(beyond), result)
    if flush:
        is_subnormal = result < constant(_bits_of(form.smallest_normal))
        result = lanes.where(is_subnormal, constant(0), result)
    if not form.has_zero:
        result = lanes.where(magnitude == constant(0), constant(_NAN), result)
    if not form.signed:
        result = lanes.where(sign == constant(0), result, constant(_NAN))
    result = lanes.where(magnitude > constant(_INFINITY), magnitude, result)
    return lanes.floats(sign | result)


def _on_grid(lanes: Lanes, magnitude: Any, random: Any | None, form: Format) -> Any:
    """Bits of positive values, rounded as if the format's exponents had no upper end."""
    dropped = _MANTISSA - form.mantissa_bits
    if dropped == 0:
        return magnitude
    if form.min_exponent == FLOAT32.min_exponent:
        return _to_place(lanes, magnitude, lanes.constant(dropped, magnitude), random)
    if form.min_exponent < FLOAT32.min_exponent:
        return _to_powers_of_two(lanes, magnitude, random, form)
    return _to_place_or_less(lanes, magnitude, dropped, random, form)


def _to_place(lanes: Lanes, magnitude: Any, place: Any, random: Any | None) -> Any:
    """Bits rounded to multiples of 2**place, 1 <= place <= 23.

    The carry runs into the exponent by itself: the next power of two is the next bit pattern.
    """
    step = lanes.constant(1, magnitude) << place
    below = step - lanes.constant(1, magnitude)
    kept = magnitude & (below ^ lanes.constant(0xFFFFFFFF, magnitude))
    fraction = magnitude << (lanes.constant(32, magnitude) - place)
    if random is None:
        # At place 23 the last bit kept is the leading one, which the pattern does not show.
        last = (magnitude | lanes.constant(_LEADING_ONE, magnitude)) & step
        is_even = last == lanes.constant(0, magnitude)
        half = lanes.constant(_HALF, magnitude)
        threshold = lanes.where(is_even, half, lanes.constant(_HALF - 1, magnitude))
    else:
        threshold = random
    return kept + lanes.where(threshold < fraction, step, lanes.constant(0, magnitude))


def _to_place_or_less(
    lanes: Lanes, magnitude: Any, dropped: int, random: Any | None, form: Format
) -> Any:
    """Bits rounded to a format whose subnormals are normal in FP32: each binade has its place."""

    def constant(number: int) -> Any:
        return lanes.constant(number, magnitude)

    exponent = magnitude >> constant(_MANTISSA)
    first_normal = constant(form.min_exponent + FLOAT32.bias)
    subnormal = first_normal - lanes.where(exponent < first_normal, exponent, first_normal)
    place = subnormal + constant(dropped)
    is_deep = place > constant(_MANTISSA)
    rounded = _to_place(lanes, magnitude, lanes.where(is_deep, constant(_MANTISSA), place), random)
    # Deep down lie values below the smallest subnormal, which become that or zero.
    if random is None:
        goes_up = magnitude > constant(_bits_of(form.smallest_subnormal / 2))
    else:
        goes_up = random < _deep_fraction(lanes, magnitude, place)
    smallest = lanes.where(goes_up, constant(_bits_of(form.smallest_subnormal)), constant(0))
    return lanes.where(is_deep, smallest, rounded)


def _deep_fraction(lanes: Lanes, magnitude: Any, place: Any) -> Any:
    """Value in units of the smallest subnormal, times 2**32, where `place` is above 23."""

    def constant(number: int) -> Any:
        return lanes.constant(number, magnitude)

    significand = (magnitude << constant(8)) | constant(_LEADING_ONE << 8)
    least, most = constant(24), constant(24 + RANDOM_BITS - 1)
    shift = lanes.where(place < least, least, lanes.where(place > most, most, place)) - least
    return lanes.where(place > most, constant(0), significand >> shift)


def _to_powers_of_two(lanes: Lanes, magnitude: Any, random: Any | None, form: Format) -> Any:
    """Bits rounded to powers of two that begin with a subnormal of FP32."""

    def constant(number: int) -> Any:
        return lanes.constant(number, magnitude)

    smallest = constant(_bits_of(form.smallest_normal))
    magnitude = lanes.where(magnitude < smallest, smallest, magnitude)
    is_subnormal = magnitude < constant(_LEADING_ONE)
    place = lanes.where(is_subnormal, constant(_MANTISSA - 1), constant(_MANTISSA))
    return _to_place(lanes, magnitude, place, random)


def _bits_of(value: float) -> int:
    """The FP32 bits of a value that FP32 has."""
    return int(np.float32(value).view(np.uint32))


def random_bits(lanes: Lanes, counter: Any, seed: Any) -> Any:
    """32 random bits for each `counter` of the stream `seed`; all are unsigned 32-bit integers.

    A hash without state: rounds of multiply and xorshift. The seed enters before the first, and
    again after it, lest two streams be the same numbers in another order. In one stream different
    counters have different bits. It stands in for the generator of the hardware, which is not
    documented, and reproduces none of its sequences.
    """

    def constant(number: int) -> Any:
        return lanes.constant(number, counter)

    x = (counter ^ (seed * constant(0x9E3779B1)) ^ constant(0x85EBCA6B)) * constant(0x21F0AAAD)
    x = (x ^ (x >> constant(15))) + (seed ^ constant(0x68E31DA4)) * constant(0xB5297A4D)
    x = (x ^ (x >> constant(14))) * constant(0x735A2D97)
    x = (x ^ (x >> constant(15))) * constant(0x2C1B3C6D)
    return x ^ (x >> constant(16))
