"""`jax.nn.scaled_matmul` and its relatives on the platform, against numpy in FP64.

JAX lowers them for GPUs alone, so `cpu` cannot be asked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

GENERATOR = np.random.default_rng(0)
ROWS = (((2,), (2,)), ((0,), (0,)))
"""Dimension numbers of [batch, m, k] times [batch, n, k]."""


def drawn(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(dtype)


def powers(shape: tuple[int, ...]) -> np.ndarray:
    codes = GENERATOR.integers(120, 134, shape, dtype=np.uint8)
    return codes.view(ml_dtypes.float8_e8m0fnu)


def repeated(elements: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The operand that elements and scales stand for, as the documentation defines it."""
    block = elements.shape[-1] // scales.shape[-1]
    return elements.astype(np.float64) * np.repeat(scales.astype(np.float64), block, axis=-1)


def assert_close(found: jax.Array, lhs: np.ndarray, rhs: np.ndarray) -> None:
    """Within what k roundings to FP32 and one to the result's type can change."""
    expected = np.einsum("bmk,bnk->bmn", lhs, rhs)
    sizes = np.einsum("bmk,bnk->bmn", np.abs(lhs), np.abs(rhs))
    bound = lhs.shape[-1] * 2.0**-24 * sizes
    bound += np.abs(expected) * float(jnp.finfo(found.dtype).eps)
    assert (np.abs(np.asarray(found).astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("result", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
    ("dtypes", "scales"),
    [
        ((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn), powers),
        ((ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn), powers),
        (
            (ml_dtypes.float4_e2m1fn, ml_dtypes.float4_e2m1fn),
            lambda shape: np.abs(drawn(shape, ml_dtypes.float8_e4m3fn)),
        ),
        ((np.float32, np.float32), lambda shape: drawn(shape, np.float32)),
    ],
    ids=["mxfp8", "mixed", "nvfp4", "float32"],
)
def test_scaled_matmul(dtypes: Any, scales: Any, result: Any, neuron_devices: Any) -> None:
    lhs, rhs = drawn((2, 5, 96), dtypes[0]), drawn((2, 7, 96), dtypes[1])
    lhs_scales, rhs_scales = scales((2, 5, 3)), scales((2, 7, 3))
    operands = jax.device_put((lhs, rhs, lhs_scales, rhs_scales), neuron_devices[1])
    found = jax.nn.scaled_matmul(*operands, preferred_element_type=result)
    assert (found.dtype, found.devices()) == (result, {neuron_devices[1]})
    assert_close(found, repeated(lhs, lhs_scales), repeated(rhs, rhs_scales))


def test_smallest_and_missing_scales(neuron_devices: list[jax.Device]) -> None:
    """2**-127 is subnormal in FP32, the product is not; NaN is no scale."""
    lhs, rhs = np.zeros((2, 1, 3, 64), ml_dtypes.float8_e4m3fn)
    lhs[0, :, 0], rhs[0, :, 0] = 448, 1
    codes = np.uint8([[0, 127], [127, 255], [1, 127]])
    scales = codes.view(ml_dtypes.float8_e8m0fnu)[None]
    found = jax.nn.scaled_matmul(lhs, rhs, scales, np.ones_like(scales))
    np.testing.assert_array_equal(found[0, 0], np.full(3, 448 * 2.0**-127, np.float32))
    np.testing.assert_array_equal(found[0, 1], np.full(3, np.nan))
    np.testing.assert_array_equal(found[0, 2], np.full(3, 448 * 2.0**-126, np.float32))


def test_scaled_matmul_becomes_plain_stablehlo(neuron_devices: list[jax.Device]) -> None:
    elements = jax.ShapeDtypeStruct((1, 4, 32), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((1, 4, 1), jnp.float8_e8m0fnu)
    traced = jax.jit(jax.nn.scaled_matmul).trace(elements, elements, scales, scales)
    text = traced.lower(lowering_platforms=("neuron",)).as_text()
    assert text.count("stablehlo.dot_general") == 1
    assert "custom_call" not in text


def test_vmap(neuron_devices: list[jax.Device]) -> None:
    lhs, rhs = (drawn((3, 2, 4, 64), ml_dtypes.float8_e4m3fn) for _ in range(2))
    lhs_scales, rhs_scales = (powers((3, 2, 4, 2)) for _ in range(2))
    found = jax.vmap(jax.nn.scaled_matmul)(lhs, rhs, lhs_scales, rhs_scales)
    for i in range(3):
        assert_close(found[i], repeated(lhs[i], lhs_scales[i]), repeated(rhs[i], rhs_scales[i]))


def scaled_dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    configs = [jax.nn.get_scaled_dot_general_config("mxfp8")] * 3
    return jax.nn.scaled_dot_general(lhs, rhs, ROWS, configs=configs)


def test_scaled_dot_general_and_its_gradient(neuron_devices: list[jax.Device]) -> None:
    lhs, rhs = drawn((2, 32, 64), np.float32), drawn((2, 64, 64), np.float32)
    out, pull = jax.vjp(jax.jit(scaled_dot), lhs, rhs)
    seed = drawn(out.shape, np.float32)
    exact = (
        np.einsum("bmk,bnk->bmn", lhs, rhs),
        np.einsum("bmn,bnk->bmk", seed, rhs),
        np.einsum("bmn,bmk->bnk", seed, lhs),
    )
    for found, expected in zip((out, *pull(seed)), exact, strict=True):
        # Each operand is off by up to 1/16 of its block's largest element; mostly it is far less.
        error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
        assert error < 2.0**-4


@pytest.mark.parametrize(
    ("lhs_spec", "rhs_spec"),
    [
        (P("x", "y", None), P("x", None, None)),
        (P(None, "x", None), P(None, "y", None)),
        (P("x", None, "y"), P("x", None, "y")),
        (P(None, "x", "y"), P(None, None, "y")),
    ],
)
def test_sharded_is_unsharded(lhs_spec: P, rhs_spec: P, neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=neuron_devices[:4])
    lhs, rhs = drawn((2, 32, 128), np.float32), drawn((2, 64, 128), np.float32)
    whole = np.asarray(jax.jit(scaled_dot)(lhs, rhs))
    there = [
        jax.device_put(value, NamedSharding(mesh, spec))
        for value, spec in ((lhs, lhs_spec), (rhs, rhs_spec))
    ]
    found = jax.jit(scaled_dot)(*there)
    assert len(found.devices()) == 4
    # Contracting in parts adds in another order.
    np.testing.assert_allclose(found, whole, rtol=0, atol=128 * 2.0**-24 * np.abs(whole).max())


def test_lax_scaled_dot(neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]) -> None:
    lhs, rhs = drawn((4, 64), ml_dtypes.float8_e4m3fn), drawn((64, 8), ml_dtypes.float8_e4m3fn)
    scales = [np.exp2(np.arange(8)).astype(ml_dtypes.float8_e8m0fnu).reshape(4, 2)]
    scales.append(np.ones((2, 8), ml_dtypes.float8_e8m0fnu))
    results = []
    for device in (neuron_devices[0], cpu_devices[0]):
        a, b, a_scale, b_scale = jax.device_put((lhs, rhs, *scales), device)
        results.append(jax.lax.scaled_dot(a, b, lhs_scale=a_scale, rhs_scale=b_scale))
    np.testing.assert_array_equal(*map(np.asarray, results))
