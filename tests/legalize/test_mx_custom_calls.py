"""Custom calls that make MX blocks and multiply them, against numpy in FP64 by ml_dtypes."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from tests.legalize.chip import run
from tests.legalize.custom_call import (
    BF16,
    F16,
    F32,
    GENERATOR,
    TRN3,
    U32,
    VECTOR,
    assert_rounded,
    call,
    dot_config,
    error_of,
    mx_config,
)


@pytest.mark.parametrize("target", ["QuantizeMX", "ScaledMatmul", "__op$block_scaled_dot"])
def test_mx_needs_trn3(target: str) -> None:
    text = error_of(target, [((3,), F32)], None, [VECTOR])
    assert "needs NeuronCore-v4, and trainium2 has NeuronCore-v3; choose a trn3 target" in text


def mx_reference(
    x: np.ndarray, element: str, headroom: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(words, scale codes, values in FP64) of MX along the last dimension, by ml_dtypes."""
    info = ml_dtypes.finfo(element)
    emax = int(np.floor(np.log2(float(info.max))))
    blocks = x.astype(np.float64).reshape(*x.shape[:-1], -1, 32)
    largest = np.max(np.abs(blocks), -1, keepdims=True)
    exponents = np.where(largest == 0, -127, np.floor(np.log2(np.where(largest == 0, 1, largest))))
    exponents = np.maximum(exponents - np.where(largest == 0, 0, emax - headroom), -127)
    limit = float(info.max)
    elements = np.clip(blocks / 2.0**exponents, -limit, limit).astype(element)
    values = (elements.astype(np.float64) * 2.0**exponents).reshape(x.shape)
    fours = elements.reshape(*x.shape[:-1], -1, 4).view(np.uint8).astype(U32)
    words = (fours << (8 * np.arange(4, dtype=U32))).sum(-1, dtype=U32)
    return words, (exponents.squeeze(-1) + 127).astype(np.uint8), values


MX_DATA = np.concatenate(
    [GENERATOR.standard_normal((6, 64)) * np.exp2(GENERATOR.integers(-20, 9, (6, 64))),
     np.zeros((1, 64)), np.full((1, 64), 60000.0)]
)  # fmt: skip


def mx_words(shape: tuple[int, ...], dim: int) -> list[tuple[tuple[int, ...], Any]]:
    sizes = list(shape), list(shape)
    sizes[0][dim] //= 4
    sizes[1][dim] //= 32
    return [(tuple(sizes[0]), U32), (tuple(sizes[1]), np.uint8)]


@pytest.mark.parametrize(("sdk", "headroom"), [("2.32", 1), ("2.30", 0)])
@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dim", [-1, 0])
def test_quantize(element: str, dim: int, sdk: str, headroom: int) -> None:
    data = MX_DATA.astype([BF16, F16][dim])
    words, scales, _ = mx_reference(data, element, headroom)
    if dim == 0:
        data, words, scales = data.T, words.T, scales.T

    def program(x: jax.Array) -> Any:
        config = mx_config(dtype=element, dim=dim, scale_method="EMAX")
        return call("QuantizeMX", mx_words(data.shape, dim), config, x)

    found = run(program, data, NEURONJAX_SDK=sdk, **TRN3)
    np.testing.assert_array_equal(found[0], words)
    np.testing.assert_array_equal(found[1], scales)


LHS, RHS = GENERATOR.standard_normal((2, 3, 64)), GENERATOR.standard_normal((2, 5, 64))
BATCHED = dot_config(lhs_batch_dimensions=[0], rhs_batch_dimensions=[0])
CONFIGURED = dot_config(
    lhs_batch_dimensions=[0], rhs_batch_dimensions=[0],
    lhs_contracting_dimensions=[2], rhs_contracting_dimensions=[1],
)  # fmt: skip
CAST = {
    "NEURONJAX_NUMERICS": "chip",
    "NEURON_CC_FLAGS": "--auto-cast=matmult --auto-cast-type=fp8_e4m3",
}


@pytest.mark.parametrize(
    ("target", "config", "result", "environ"),
    [
        ("__op$block_scaled_dot", BATCHED, F32, {}),
        ("ScaledMatmul", CONFIGURED, BF16, {}),
        ("ScaledMatmul", BATCHED, F32, CAST),
    ],
)
def test_scaled_matmul(target: str, config: str, result: np.dtype, environ: dict[str, str]) -> None:
    lhs, lhs_scale, lhs_values = mx_reference(LHS, "float8_e5m2", 1)
    rhs, rhs_scale, rhs_values = mx_reference(RHS, "float8_e5m2", 0)
    if config == CONFIGURED:
        rhs, rhs_scale = np.swapaxes(rhs, 1, 2), np.swapaxes(rhs_scale, 1, 2)

    def program(*operands: jax.Array) -> jax.Array:
        return call(target, [((2, 3, 5), result)], config, *operands)

    found = run(program, lhs, rhs, lhs_scale, rhs_scale, **TRN3, **environ)
    expected = np.einsum("bmk,bnk->bmn", lhs_values, rhs_values)
    magnitudes = np.einsum("bmk,bnk->bmn", np.abs(lhs_values), np.abs(rhs_values))
    assert_rounded(found, expected, largest=np.max(magnitudes))


def test_scaled_matmul_of_unpacked_elements() -> None:
    """The form that JAX writes for other platforms."""
    x, scale = LHS[0].astype("float8_e4m3fn"), np.full((3, 2), 128, np.uint8)
    scale = scale.view("float8_e8m0fnu")

    def program(x: jax.Array, scale: jax.Array) -> jax.Array:
        return call("__op$block_scaled_dot", [((3, 3), F32)], "{}", x, x, scale, scale)

    exact = 2 * x.astype(np.float64)
    assert_rounded(run(program, x, scale, **TRN3), exact @ exact.T, largest=np.max(exact) ** 2)
