"""The building blocks against FP64 NumPy and against the laws they obey."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.masks import causal_mask
from models.layers.norms import RMSNorm
from models.layers.rotary import Rotary, apply_rotary, turn
from models.losses import cross_entropy
from tests.models import reference

# A few roundings of FP32 (unit roundoff 6e-8) per sum of tens of terms.
FP32 = {"rtol": 2e-6, "atol": 2e-6}


@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 1e4])
def test_rms_norm_is_the_fp64_formula(devices: list[jax.Device], magnitude: float) -> None:
    rng = np.random.default_rng(0)
    x = (magnitude * rng.normal(size=(3, 5, 48))).astype(np.float32)
    norm = RMSNorm(48, eps=1e-5, param_dtype="float32")
    scale = rng.normal(size=48).astype(np.float32)
    norm.scale[...] = jnp.asarray(scale)
    got = jax.jit(norm.__call__)(jax.device_put(x, devices[0]))
    expected = reference.rms_norm(x.astype(np.float64), scale.astype(np.float64), 1e-5)
    np.testing.assert_allclose(got, expected, **FP32)


def test_rms_norm_of_bfloat16_has_fp32_statistics() -> None:
    x = jnp.full((1, 4096), 3.0, jnp.bfloat16)  # a bfloat16 sum of 4096 squares stalls early
    got = RMSNorm(4096, eps=0.0, param_dtype="float32")(x)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(jnp.float32), 1.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_rotary_scores_depend_on_the_distance_alone(p: int, q: int, shift: int) -> None:
    vectors = np.random.default_rng(1).normal(size=(2, 1, 1, 16)).astype(np.float32)

    def score(first: int, second: int) -> float:
        by = turn(jnp.array([first, second]), 16, Rotary(theta=10_000.0))
        turned = apply_rotary(jnp.asarray(vectors.reshape(1, 2, 1, 16)), by)
        return float(jnp.vdot(turned[0, 0], turned[0, 1]))

    # An angle of up to 1000 radians is known to 6e-5 in FP32; |query||key| is about 16.
    assert score(p, q) == pytest.approx(score(p + shift, q + shift), abs=16 * 1000 * 1.2e-7)


def test_rotary_turns_complex_pairs(devices: list[jax.Device]) -> None:
    x = np.random.default_rng(2).normal(size=(1, 6, 1, 8)).astype(np.float32)
    by = turn(jax.device_put(jnp.arange(6), devices[0]), 8, Rotary(theta=100.0))
    got = apply_rotary(jax.device_put(x, devices[0]), by)
    expected = [reference.rotate(x[0, t, 0].astype(np.float64), t, 100.0) for t in range(6)]
    np.testing.assert_allclose(got[0, :, 0], expected, **FP32)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_attention_is_the_fp64_formula(
    devices: list[jax.Device], num_heads: int, num_kv_heads: int
) -> None:
    rng = np.random.default_rng(3)
    query = rng.normal(size=(2, 5, num_heads, 8)).astype(np.float32)
    keys, values = rng.normal(size=(2, 2, 7, num_kv_heads, 8)).astype(np.float32)
    mask = causal_mask(jnp.arange(2, 7), jnp.arange(7))
    arguments = jax.device_put((query, keys, values, AttentionCall(mask)), devices[0])
    got = jax.jit(dot_product_attention)(*arguments)
    for b, t, n in np.ndindex(2, 5, num_heads):
        shared = n // (num_heads // num_kv_heads)
        expected = reference.attend(
            query[b, t, n].astype(np.float64),
            keys[b, : t + 3, shared].astype(np.float64),
            values[b, : t + 3, shared].astype(np.float64),
        )
        np.testing.assert_allclose(got[b, t, n], expected, **FP32)


def test_attention_survives_large_scores() -> None:
    query = jnp.full((1, 2, 1, 4), 300.0)  # scores of 180,000 overflow exp in any format
    call = AttentionCall(causal_mask(jnp.arange(2), jnp.arange(2)))
    got = dot_product_attention(query, query, jnp.ones_like(query), call)
    np.testing.assert_array_equal(got, 1.0)


def test_cross_entropy_is_the_fp64_formula(devices: list[jax.Device]) -> None:
    rng = np.random.default_rng(4)
    logits = (5 * rng.normal(size=(3, 4, 11))).astype(np.float32)
    targets = rng.integers(0, 11, (3, 4)).astype(np.int32)
    got = jax.jit(cross_entropy)(*jax.device_put((logits, targets), devices[0]))
    expected = -np.take_along_axis(
        log_softmax(logits.astype(np.float64), axis=-1), targets[..., None], -1
    )
    np.testing.assert_allclose(got, expected[..., 0], rtol=2e-6, atol=4e-6)
