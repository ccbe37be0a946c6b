"""Errors and units in the last place against NumPy and against numbers worked out by hand."""

import ml_dtypes
import numpy as np
import pytest

from neuronjax.accuracy.measure import NONE, Error, error, ulp

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("dtype", "number", "unit"),
    [
        (np.float32, 1.0, 2.0**-23),
        (np.float32, 0.75, 2.0**-24),
        (np.float32, -3.0, 2.0**-22),
        (np.float64, 1.0, 2.0**-52),
        (ml_dtypes.bfloat16, 1.0, 2.0**-7),
        (ml_dtypes.bfloat16, 255.0, 1.0),
        (np.float16, 1000.0, 0.5),
        (np.float16, 65504.0, 32.0),
        (np.float16, 1e9, 32.0),  # beyond the greatest number
        (np.float16, 2.0**-14, 2.0**-24),
        (np.float16, 2.0**-20, 2.0**-24),  # subnormal
        (np.float16, 0.0, 2.0**-24),
        (ml_dtypes.float8_e4m3fn, 448.0, 32.0),
        (ml_dtypes.float8_e4m3, 1.5, 0.125),
        (ml_dtypes.float8_e5m2, 1.5, 0.25),
        (ml_dtypes.float4_e2m1fn, 5.0, 2.0),
    ],
)
def test_unit(dtype, number, unit):
    assert ulp([number], dtype).tolist() == [unit]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_unit_is_numpys_spacing(dtype):
    info = np.finfo(dtype)
    random = np.random.default_rng(0)
    exponents = random.uniform(np.log2(info.smallest_subnormal) + 1, np.log2(info.max) - 1, 1000)
    numbers = np.exp2(exponents).astype(dtype)
    np.testing.assert_array_equal(ulp(numbers, dtype), np.spacing(numbers).astype(np.float64))


EIGHTH = 2.0**-3


@pytest.mark.parametrize(
    ("values", "reference", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], NONE),
        ([1.0078125], [1.0], Error(2.0**-7, 2.0**-7, 1.0)),
        ([3.0, 4.5], [3.0, 4.0], Error(0.5 / 5, EIGHTH, 16.0)),
        ([0.0, 3.0, 4.0], [5.0, 3.0, 4.0], Error(5 / np.sqrt(50), 1.0, 160.0)),
        ([1.0], [0.0], Error(INF, 2.0**126, 2.0**133)),
        ([0.0], [0.0], NONE),
        ([-0.0], [0.0], NONE),
        ([NAN, INF, -INF], [NAN, INF, -INF], NONE),
        ([NAN, 1.0], [1.0, 1.0], Error(INF, INF, INF)),
        ([1.0], [NAN], Error(INF, INF, INF)),
        ([INF], [3e38], Error(INF, INF, INF)),
        ([INF], [-INF], Error(INF, INF, INF)),
        ([], [], NONE),
    ],
)
def test_error_of_bfloat16(values, reference, expected):
    found = error(np.array(values, ml_dtypes.bfloat16), np.array(reference))
    assert found.relative == pytest.approx(expected.relative, rel=1e-15)
    assert (found.max_relative, found.ulps) == (expected.max_relative, expected.ulps)


def test_error_of_complex_numbers_is_that_of_their_parts():
    values = np.array([3 + 4.5j, 1j], np.complex64)
    assert error(values, np.array([3 + 4j, 1j])) == error(
        np.array([3, 4.5, 0, 1], np.float32), np.array([3.0, 4, 0, 1])
    )


def test_norms_neither_overflow_nor_underflow():
    for scale in (1e300, 1e-300):
        found = error(np.array([3.0, 4.5]) * scale, np.array([3.0, 4.0]) * scale)
        assert found.relative == pytest.approx(0.1)


def test_the_worse_of_two():
    assert Error(1, 5, 3).worse(Error(2, 4, 3)) == Error(2, 5, 3)
