"""A job of two programs: one without arguments that makes an array, and one that sums it up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
split = NamedSharding(mesh, PartitionSpec("data", "model"))
state = jax.jit(lambda: jnp.ones((8, 8)), out_shardings=split)()
assert float(jax.jit(jnp.sum)(state)) == 64
