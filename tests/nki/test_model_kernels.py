"""The kernels of `models.kernels` against what they are documented to compute, in FP64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.kernels.rms_norm import rms_norm

EPS = 1e-5
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2}
CUSTOM_CALL = "AwsNeuronCustomNativeKernel"


def drawn(dtype: str, *shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def check(dtype: str, results: Any, expected: Any) -> None:
    """That results are as close as their dtype allows, measured by the largest number of each."""
    for result, right in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert result.dtype == dtype
        assert result.shape == right.shape
        error = np.abs(np.asarray(result, np.float64) - right).max()
        assert error <= TOLERANCES[dtype] * np.abs(right).max()


def in_fp64(function: Any, *arguments: Any) -> Any:
    """What a function of JAX says for the same numbers in FP64, on the host."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [jnp.asarray(np.asarray(argument, np.float64)) for argument in arguments]
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))


def with_gradients(function: Any) -> Any:
    """Its value, and its gradients for all arguments but the last, which is the gradient of the
    value."""

    def valued(*arguments: jax.Array) -> Any:
        value, pull = jax.vjp(function, *arguments[:-1])
        return value, *pull(arguments[-1].astype(value.dtype))

    return valued


def plain_rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * scale


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rms_norm(dtype: str) -> None:
    arguments = drawn(dtype, (3, 100, 48), (48,), (3, 100, 48))
    function = jax.jit(with_gradients(lambda x, scale: rms_norm(x, scale, EPS)))
    assert CUSTOM_CALL in function.lower(*arguments).as_text()
    check(dtype, function(*arguments), in_fp64(with_gradients(plain_rms_norm), *arguments))


def test_rms_norm_over_another_axis_is_one_call_of_more_rows() -> None:
    x, scale = drawn("float32", (2, 64, 16), (16,))
    function = jax.jit(jax.vmap(lambda x: rms_norm(x, scale, EPS)))
    text = function.lower(x).as_text()
    assert text.count(CUSTOM_CALL) == 1
    assert "while" not in text
    check("float32", function(x), in_fp64(plain_rms_norm, x, scale))
