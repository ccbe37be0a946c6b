"""`round_scalar` against gfloat and ml_dtypes, which were written by others."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import gfloat
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from neuronjax.formats import FLOAT8_E4M3FN, FLOAT8_E8M0FNU, FORMATS, Format
from neuronjax.rounding import round_scalar
from tests.rounding.cases import GFLOAT, NARROW, WITH_DTYPE, assert_same, randoms, sample

PRECISE = [form for form in NARROW if form.mantissa_bits > 0]
"""Powers of two have no even significand: gfloat looks at the exponent's parity instead."""

COUNT = 1000


def gfloat_round(form: Format, value: float, **how: object) -> float:
    info = GFLOAT[form.name]
    if not form.has_nan and (math.isnan(value) or not how.get("sat")):
        # gfloat refuses what the format cannot express; the oracle keeps NaN and saturates.
        if math.isnan(value):
            return math.nan
        how["sat"] = True
    return gfloat.round_float(info, value, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("form", PRECISE, ids=lambda form: form.name)
def test_nearest_is_gfloats(form: Format, saturate: bool) -> None:
    values = sample(form, COUNT)
    overflow = "saturate" if saturate else "infinity"
    found = [round_scalar(float(value), form, overflow=overflow) for value in values]
    assert_same(found, [gfloat_round(form, float(v), sat=saturate) for v in values], values)


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_nearest_is_ml_dtypes(form: Format) -> None:
    values = sample(form, COUNT)
    values = values[~np.isnan(values)] if not form.has_nan else values
    if form is FLOAT8_E8M0FNU:
        values = values[~is_misrounded(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(form.dtype).astype(np.float32)
    assert_same([round_scalar(float(value), form) for value in values], expected, values)


def is_misrounded(values: np.ndarray) -> np.ndarray:
    """Where ml_dtypes 0.6 and XLA take float8_e8m0fnu to 2**-126 although 2**-127 is nearer."""
    return (values > 2.0**-127) & (values < 1.5 * 2.0**-127)


def test_smallest_powers_of_two() -> None:
    steps = np.float64([1, 1 + 2**-22, 1.49, 1.5, 1.51, 2, 2.99, 3])
    found = [round_scalar(float(step) * 2.0**-127, FLOAT8_E8M0FNU) * 2.0**127 for step in steps]
    assert found == [1, 1, 1, 2, 2, 2, 2, 4]


@pytest.mark.parametrize("form", PRECISE, ids=lambda form: form.name)
def test_stochastic_is_gfloats(form: Format) -> None:
    values = sample(form, COUNT)
    exponents = np.frexp(np.where(np.isfinite(values) & (values != 0), values, 1))[1] - 1
    # gfloat rounds the distance to 32 bits where the oracle cuts it: take what both have exactly.
    values = values[exponents >= form.min_exponent - form.mantissa_bits - 8]
    bits = randoms(len(values))
    pairs = list(zip(values.tolist(), bits.tolist(), strict=True))
    found = [round_scalar(x, form, mode="stochastic", random=random) for x, random in pairs]
    expected = [
        gfloat_round(
            form, x, rnd=gfloat.RoundMode.Stochastic, srbits=2**32 - 1 - random, srnumbits=32
        )
        for x, random in pairs
    ]
    assert_same(found, expected, values)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Fraction(464), 448.0),  # a tie; 480 would be the code of NaN
        (Fraction(464) + Fraction(1, 10**30), math.nan),  # no float lies so near
        (Fraction(1, 1024), 0.0),
        (Fraction(1, 1024) + Fraction(1, 10**30), 2.0**-9),
        (-Fraction(3, 1024), -(2.0**-8)),
        (Fraction(1, 3), 11 / 32),
    ],
)
def test_exact_arithmetic(value: Fraction, expected: float) -> None:
    found = round_scalar(value, FLOAT8_E4M3FN)
    assert struct.pack("d", found) == struct.pack("d", expected)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_flushing_only_changes_subnormals(form: Format) -> None:
    for value in sample(form, 300).tolist():
        plain, flushed = (round_scalar(value, form, flush_subnormals=f) for f in (False, True))
        if 0 < abs(plain) < form.smallest_normal:
            assert (flushed, math.copysign(1, flushed)) == (0, math.copysign(1, value))
        else:
            assert struct.pack("d", flushed) == struct.pack("d", plain)


FORM = st.sampled_from([form for form in FORMATS.values() if form.signed])
NUMBER = st.floats(allow_nan=False, width=64)


@given(form=FORM, value=NUMBER)
def test_idempotent(form: Format, value: float) -> None:
    once = round_scalar(value, form)
    if not math.isnan(once):
        assert round_scalar(once, form) == once


@given(form=FORM, value=NUMBER, random=st.integers(0, 2**32 - 1))
def test_idempotent_when_stochastic(form: Format, value: float, random: int) -> None:
    on_grid = round_scalar(value, form, overflow="saturate")
    assert round_scalar(on_grid, form, mode="stochastic", random=random) == on_grid


@given(form=FORM, values=st.tuples(NUMBER, NUMBER), random=st.integers(0, 2**32 - 1))
def test_monotone(form: Format, values: tuple[float, float], random: int) -> None:
    low, high = sorted(values)
    for how in ({"mode": "nearest"}, {"mode": "stochastic", "random": random}):
        assert round_scalar(low, form, overflow="saturate", **how) <= round_scalar(
            high, form, overflow="saturate", **how
        )


@given(form=FORM, value=NUMBER, random=st.integers(0, 2**32 - 1))
def test_symmetric(form: Format, value: float, random: int) -> None:
    for how in ({"mode": "nearest"}, {"mode": "stochastic", "random": random}):
        negative = round_scalar(-value, form, overflow="saturate", **how)
        positive = round_scalar(value, form, overflow="saturate", **how)
        assert struct.pack("d", negative) == struct.pack("d", -positive)
