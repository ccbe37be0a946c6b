"""Delayed scaling, microscaling and fake quantization of one linear map, against numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.linen import fp8_ops

from models.layers.fake_quantization import QuantizedInput, fake_quantize, fake_quantize_weights
from models.layers.fp8 import DTYPES, DelayedScaling, next_history
from tests.conftest import RunPython

RNG = np.random.default_rng(0)
X = RNG.normal(0, 3, (2, 5, 4, 8)).astype(np.float32)
KERNEL = RNG.normal(0, 0.02, (4, 8, 6)).astype(np.float32)
GRADIENT = RNG.normal(0, 1e-6, (2, 5, 6)).astype(np.float32)


def saturated(x: np.ndarray, dtype: Any, largest: float) -> np.ndarray:
    """What is left of x in `dtype`, whose range `largest` fills."""
    limit = float(ml_dtypes.finfo(dtype).max)
    scale = 2.0 ** np.ceil(np.log2(largest / limit)) if largest else 1.0
    return np.clip(x / scale, -limit, limit).astype(np.float32).astype(dtype).astype(float) * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [(0, 0, 0), (2.5, 0.01, 3e-6)], ids=["first", "later"])
def test_delayed_scaling(dtype: str, largest: tuple[float, ...]) -> None:
    """Scales are those of the largest of the last steps; what is larger now saturates."""
    matmul = DelayedScaling(dtype, history_length=4)
    history = np.zeros((3, 4), np.float32)
    history[:, 2] = largest
    value, pull = jax.vjp(lambda x, k, h: matmul(x, k, 2, h), X, KERNEL, history)
    x, kernel = saturated(X, dtype, largest[0]), saturated(KERNEL, dtype, largest[1])
    gradient = saturated(GRADIENT, ml_dtypes.float8_e5m2, largest[2])
    expected = (
        np.tensordot(x, kernel, 2),
        np.einsum("bto,hio->bthi", gradient, kernel),
        np.einsum("bthi,bto->hio", x, gradient),
    )
    *found, amax = (value, *pull(GRADIENT))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=np.abs(wanted).max() * 2.0**-20)
    after = np.asarray(next_history(history, amax))
    np.testing.assert_array_equal(after[:, 0], [np.abs(a).max() for a in (X, KERNEL, GRADIENT)])
    np.testing.assert_array_equal(after[:, 1:], history[:, :-1])


def test_history_is_that_of_transformer_engine() -> None:
    """Flax has its formula: the magnitudes of the last steps, of which the largest counts."""
    found, expected = jnp.zeros((1, 4)), jnp.zeros(4)
    for x in RNG.normal(size=(9, 5)).astype(np.float32) * np.float32([[2.0**-n] for n in range(9)]):
        found = next_history(found, jnp.zeros((1, 4)).at[0, 0].set(np.abs(x).max()))
        expected = fp8_ops.compute_amax_history(x, expected)
        assert float(jnp.max(found)) == float(jnp.max(expected))
        np.testing.assert_array_equal(np.sort(found[0]), np.sort(expected))


def test_int8_weights() -> None:
    """A scale for each output; the exported numbers are whole multiples of it."""
    found = np.asarray(fake_quantize_weights(jnp.asarray(KERNEL), (0, 1), "int8"), np.float64)
    scale = np.abs(KERNEL).max((0, 1)).astype(np.float64) / 127
    codes = found / scale
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-4)
    assert np.abs(codes).max() == pytest.approx(127)
    assert (np.abs(found - KERNEL) <= scale * 0.5001).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_weights(dtype: str) -> None:
    found = fake_quantize_weights(jnp.asarray(KERNEL), (0, 1), dtype)
    scale = np.abs(KERNEL).max((0, 1)) / np.float32(ml_dtypes.finfo(dtype).max)
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    expected = np.clip(KERNEL / scale, -limit, limit).astype(dtype).astype(np.float32) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_pass_straight_through_where_nothing_was_clipped() -> None:
    x = np.float32([-3, -2, -0.3, 0, 0.4, 2, 2.1])
    value, pull = jax.vjp(lambda x: fake_quantize(x, jnp.float32(2), "int8"), x)
    codes = np.round(np.clip(x / (2 / 127), -127, 127))
    np.testing.assert_allclose(value, codes * np.float32(2 / 127), rtol=1e-6)
    np.testing.assert_array_equal(pull(np.ones_like(x))[0], [0, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(fake_quantize(x, jnp.float32(0), "int8"), np.zeros_like(x))


def test_activations_have_the_range_of_the_last_steps() -> None:
    matmul = QuantizedInput("int8", history_length=2)
    history = np.zeros((3, 2), np.float32)
    rounded = np.round(np.clip(X * 127.0 / 2.5, -127, 127)) * 2.5 / 127
    for used, largest in ((X, np.inf), (rounded, 2.5)):  # in the first step as they are
        value, pull = jax.vjp(lambda x, h: matmul(x, KERNEL, 2, h), X, history)
        expected = np.tensordot(used, KERNEL.astype(np.float64), 2)
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5)
        to_x, report = pull(GRADIENT)
        straight = np.einsum("bto,hio->bthi", GRADIENT, KERNEL)
        np.testing.assert_allclose(to_x, straight * (np.abs(X) <= largest), rtol=0, atol=1e-12)
        assert float(report[0, 0]) == np.abs(X).max()
        history[0, 1] = 2.5


MX = """
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from models.layers.microscaling import Microscaling

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 5, 72)), jnp.bfloat16)
    kernel = jnp.asarray(rng.normal(size=(72, 4, 6)), jnp.bfloat16)
    gradient = jnp.asarray(rng.normal(size=(2, 5, 4, 6)), jnp.bfloat16)

    def rounded(a):
        '''Rows in blocks of 32 as MXFP8 of E4M3, with scales of quantize_mx, in FP64.'''
        a = np.asarray(a, np.float64)
        padded = np.pad(a, ((0, 0), (0, -a.shape[1] % 32)))
        blocks = padded.reshape(len(a), -1, 32)
        scales = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 7)
        blocks = (blocks / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales
        return blocks.reshape(padded.shape)

    def product(a, b):
        return rounded(a) @ rounded(np.asarray(b).T).T

    flat, matrix, given = x.reshape(10, 72), kernel.reshape(72, 24), gradient.reshape(10, 24)
    value, pull = jax.vjp(lambda x, k: Microscaling()(x, k, 1, None), x, kernel)
    to_x, to_kernel = pull(gradient)
    for found, expected in (
        (value.reshape(10, 24), product(flat, matrix)),
        (to_x.reshape(10, 72), product(given, matrix.T)),
        (to_kernel.reshape(72, 24), product(flat.T, given)),
    ):
        assert found.dtype == jnp.bfloat16
        error = np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()
        assert error < 2.0**-8, error
"""


def test_microscaling(run_python: RunPython) -> None:
    """The three products of a linear map, each with blocks along its own contracted axis."""
    trn3 = {
        "JAX_PLATFORMS": "neuron",
        "NEURONJAX_TARGET": "trn3-gen1-ultraserver",
        "NEURON_RT_NUM_CORES": "1",
    }
    process = run_python(MX, trn3, timeout=240)
    assert process.returncode == 0, process.stderr
