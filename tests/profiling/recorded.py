"""A recording to look at: a small step on four cores, run three times, and one of one core."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.profiling.records import Profile

RUNS = 3


def step(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A scan over two layers with a reduction over the cores."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.softmax(x @ weight, axis=-1), None  # LINE

    return jax.lax.scan(layer, x, weights)[0].astype(jnp.float32).sum()


@functools.cache
def profile() -> Profile:
    """The recording, without files."""
    mesh = Mesh(np.array(jax.devices("neuron")[:4]), ("data",))
    x = jax.device_put(
        jnp.ones((512, 256), jnp.bfloat16), NamedSharding(mesh, PartitionSpec("data"))
    )
    weights = jax.device_put(
        jnp.ones((2, 256, 256), jnp.bfloat16), NamedSharding(mesh, PartitionSpec())
    )
    jitted, single = jax.jit(step), jax.jit(jnp.sin)
    one = jax.device_put(jnp.ones((256, 256)), jax.devices("neuron")[0])
    with neuronjax.profile() as recorded:
        for _ in range(RUNS):
            jitted(x, weights)
        single(one)
    assert recorded.profile is not None
    return recorded.profile
