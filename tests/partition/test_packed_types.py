"""Sharded programs on types of less than a byte, whose layouts XLA spells out in the module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("results", [1, 2])
def test_sharded_nibbles(neuron_devices: list[jax.Device], dtype: str, results: int) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    values = (np.arange(32) % 7).reshape(8, 4).astype(dtype)
    x = jax.device_put(values, NamedSharding(mesh, P("x")))
    outputs = jax.jit(lambda x: (x * jnp.ones_like(x), x.astype(jnp.int32).sum(1))[:results])(x)
    wanted = (values, values.astype(np.int32).sum(1))[:results]
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
