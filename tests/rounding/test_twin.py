"""The array twin against the oracle, ml_dtypes and gfloat, on numpy and on JAX."""

from __future__ import annotations

from functools import partial

import gfloat
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from neuronjax.formats import FLOAT8_E8M0FNU, FORMATS, Format
from neuronjax.rounding import JAX, NUMPY, nearest, round_scalar, stochastic
from tests.rounding.cases import (
    GFLOAT,
    NARROW,
    WITH_DTYPE,
    assert_same,
    inputs,
    randoms,
    sample,
)
from tests.rounding.test_oracle import is_misrounded

ALL = list(FORMATS.values())
SWITCHES = [
    {},
    {"overflow": "saturate"},
    {"flush_subnormals": True},
    {"overflow": "saturate", "flush_subnormals": True},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
def test_nearest_is_the_oracles(form: Format, switches: dict) -> None:
    values = sample(form, 600)
    expected = [round_scalar(value, form, **switches) for value in values.tolist()]
    assert_same(nearest(NUMPY, values, form, **switches), expected, values)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
def test_stochastic_is_the_oracles(form: Format, switches: dict) -> None:
    values = sample(form, 600)
    bits = randoms(len(values))
    expected = [
        round_scalar(value, form, mode="stochastic", random=random, **switches)
        for value, random in zip(values.tolist(), bits.tolist(), strict=True)
    ]
    assert_same(stochastic(NUMPY, values, bits, form, **switches), expected, values)


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_nearest_is_ml_dtypes_everywhere(form: Format) -> None:
    values = inputs(form)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(form.dtype).astype(np.float32)
    if not form.has_nan:
        expected[np.isnan(values)] = np.nan
    if form is FLOAT8_E8M0FNU:
        values, expected = (a[~is_misrounded(values)] for a in (values, expected))
    assert_same(nearest(NUMPY, values, form), expected, values)


@pytest.mark.parametrize("form", [f for f in NARROW if f.dtype is None], ids=lambda f: f.name)
def test_nearest_is_gfloats_everywhere(form: Format) -> None:
    values = inputs(form)
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = gfloat.round_ndarray(GFLOAT[form.name], values.astype(np.float64))
    assert_same(nearest(NUMPY, values, form), expected, values)


@pytest.mark.parametrize("form", [f for f in ALL if f.bits <= 16], ids=lambda form: form.name)
def test_every_value_of_the_format_stays(form: Format) -> None:
    values = np.float32([form.decode(code) for code in range(form.codes)])
    values = values[~np.isnan(values)]
    for bits in (0, 1, 0xFFFFFFFF):
        rounded = stochastic(NUMPY, values, np.full(len(values), bits, np.uint32), form)
        assert_same(rounded, nearest(NUMPY, values, form), values)
        finite = np.isfinite(values)
        assert_same(rounded[finite], values[finite], values[finite])


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
def test_jax_is_numpy_bit_by_bit(form: Format, platform: str) -> None:
    values = sample(form, 50_000) if form.bits > 16 else inputs(form)
    bits = randoms(len(values))
    device = jax.devices(platform)[0]
    for switches in SWITCHES[:: 3 if platform == "cpu" else 4]:
        for twin, arrays in ((nearest, (values,)), (stochastic, (values, bits))):
            ours = partial(twin, form=form, **switches)
            there = jax.device_put(arrays, device)
            found = np.asarray(jax.jit(partial(ours, JAX))(*there))
            expected = np.asarray(ours(NUMPY, *arrays))
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_scalars_and_shapes() -> None:
    form = FORMATS["float8_e5m2"]
    assert nearest(NUMPY, np.float32(1.2), form).shape == ()
    assert float(nearest(NUMPY, np.float32(1.2), form)) == 1.25
    assert nearest(JAX, np.ones((2, 0, 3), np.float32), form).shape == (2, 0, 3)


ARRAY = hnp.arrays(np.float32, st.integers(2, 64), elements=st.floats(width=32, allow_nan=False))
FORM = st.sampled_from([form for form in ALL if form.signed])


@given(x=ARRAY, form=FORM, random=st.integers(0, 2**32 - 1))
def test_monotone_symmetric_idempotent(x: np.ndarray, form: Format, random: int) -> None:
    x = np.sort(x)
    bits = np.full(len(x), random, np.uint32)
    for round_ in (
        lambda x: nearest(NUMPY, x, form, overflow="saturate"),
        lambda x: stochastic(NUMPY, x, bits, form, overflow="saturate"),
    ):
        rounded = round_(x)
        assert (rounded[:-1] <= rounded[1:]).all()
        assert_same(round_(-x), -rounded, x)
        assert_same(round_(rounded), rounded, x)
