"""Calls of kernels where no platform has a better rule: Python functions are called."""

from __future__ import annotations

import jax
import numpy as np

from neuronjax.jaxlib_api import kernel_calls

X, SCALE = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 3], np.float32)


def scaled(x: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(x) * np.asarray(scale), np.asarray(scale)


def call(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    product, same = kernel_calls.call(scaled, (x, scale), (x, scale))
    return product, same


def test_a_call_and_calls_one_after_the_other(cpu_devices: list[jax.Device]) -> None:
    with jax.default_device(cpu_devices[0]):
        for function in (call, jax.jit(call)):
            product, same = function(X[0], SCALE)
            np.testing.assert_array_equal(product, X[0] * SCALE)
            np.testing.assert_array_equal(same, SCALE)
        product, same = jax.jit(jax.vmap(call, in_axes=(0, None)))(X, SCALE)
        np.testing.assert_array_equal(product, X * SCALE)
        np.testing.assert_array_equal(same, np.tile(SCALE, (3, 1)))
