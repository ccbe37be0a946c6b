"""XLA:CPU's own conversion to narrow formats, which the host executor relies on.

It is right from FP32 for every format, with three exceptions that are held here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.formats import FLOAT4_E2M1FN, FLOAT8_E8M0FNU, Format
from neuronjax.rounding import NUMPY, nearest
from tests.rounding.cases import WITH_DTYPE, assert_same, inputs
from tests.rounding.test_oracle import is_misrounded


def converted(values: np.ndarray, form: Format) -> np.ndarray:
    return np.asarray(jax.jit(lambda x: x.astype(form.dtype))(values))


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_from_float32(form: Format) -> None:
    values = inputs(form)
    values = values[~np.isnan(values)] if not form.has_nan else values
    if form is FLOAT8_E8M0FNU:
        values = values[~is_misrounded(values)]
    found = converted(values, form)
    assert found.dtype == form.dtype
    assert_same(found.astype(np.float32), nearest(NUMPY, values, form), values)


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_to_float32(form: Format) -> None:
    codes = np.arange(form.codes, dtype={1: np.uint8, 2: np.uint16}[form.dtype.itemsize])
    values = codes.view(form.dtype)
    found = np.asarray(jax.jit(lambda x: x.astype(jnp.float32))(values))
    expected = np.float32([form.decode(code) for code in codes.tolist()])
    assert_same(found, expected, expected)


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_folded_constants(form: Format) -> None:
    """XLA converts constants while it compiles, with other code than at run time."""
    values = inputs(form)[::97]
    values = values[np.isfinite(values) & ((values > 0) | form.signed)]
    folded = jax.jit(lambda: jnp.asarray(values).astype(form.dtype))()
    assert_same(np.asarray(folded).astype(np.float32), converted(values, form), values)


def test_exception_just_above_the_smallest_scale() -> None:
    """Between 2**-127 and 1.5 * 2**-127 the nearer power of two is missed."""
    values = (np.float64([1.01, 1.25, 1.49]) * 2.0**-127).astype(np.float32)
    assert_same(nearest(NUMPY, values, FLOAT8_E8M0FNU), np.full(3, 2.0**-127), values)
    found = converted(values, FLOAT8_E8M0FNU).astype(np.float32)
    assert_same(found, np.full(3, 2.0**-126), values)


def test_exception_constants_without_a_scale() -> None:
    """Zero and negative values become NaN at run time, but constants may become numbers."""
    values = np.float32([0, -(2.0**-117)])
    assert np.isnan(converted(values, FLOAT8_E8M0FNU).astype(np.float32)).all()
    folded = jax.jit(lambda: jnp.asarray(values).astype(FLOAT8_E8M0FNU.dtype))()
    assert np.isfinite(np.asarray(folded).astype(np.float32)).all()


def test_exception_nan_without_a_code() -> None:
    """NaN becomes zero in a format without NaN; of which sign is anybody's choice."""
    found = converted(np.float32([np.nan, -np.nan]), FLOAT4_E2M1FN).astype(np.float32)
    np.testing.assert_array_equal(found, [0, 0])
