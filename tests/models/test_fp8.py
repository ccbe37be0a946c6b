"""FP8 matmuls against FP64 arithmetic on operands that ml_dtypes rounded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from models.layers.fp8 import DTYPES, CurrentScaling

X = np.random.default_rng(0).normal(0, 3, (2, 5, 4, 8)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(0, 0.02, (4, 8, 6)).astype(np.float32)
GRADIENT = np.random.default_rng(2).normal(0, 1e-6, (2, 5, 6)).astype(np.float32)


def narrow(x: np.ndarray, dtype: Any) -> np.ndarray:
    """What is left of x after scaling to the range of dtype and rounding."""
    largest = np.abs(x).max() / float(ml_dtypes.finfo(dtype).max)
    scale = 2.0 ** np.ceil(np.log2(largest))
    return (x / scale).astype(np.float32).astype(dtype).astype(np.float64) * scale


@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_gradients(dtype: str) -> None:
    value, pull = jax.vjp(lambda x, k: CurrentScaling(dtype)(x, k, 2, None), X, KERNEL)
    x, kernel = narrow(X, dtype), narrow(KERNEL, dtype)
    gradient = narrow(GRADIENT, ml_dtypes.float8_e5m2)
    expected = (
        np.tensordot(x, kernel, 2),
        np.einsum("bto,hio->bthi", gradient, kernel),
        np.einsum("bthi,bto->hio", x, gradient),
    )
    for found, wanted in zip((value, *pull(GRADIENT)), expected, strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=scale * 2.0**-20)


@pytest.mark.parametrize("x", [np.zeros((1, 4), np.float32), np.full((1, 4), np.inf, np.float32)])
def test_no_range_to_fill(x: np.ndarray) -> None:
    result = CurrentScaling("float8_e4m3")(jnp.asarray(x), jnp.ones((4, 1)), 1, None)
    np.testing.assert_array_equal(result, x.sum(keepdims=True))
