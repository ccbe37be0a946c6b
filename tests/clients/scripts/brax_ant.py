# package: brax
"""Brax: an ant that is pushed, by the positional backend, which is plain JAX.

MJX, which reads Brax's models, knows platforms by name; `impl="jax"` asks for its own code in JAX.
"""

import functools
import json

import jax
import jax.numpy as jnp
from brax import envs
from mujoco import mjx

for name in ("put_model", "make_data"):
    setattr(mjx, name, functools.partial(getattr(mjx, name), impl="jax"))

environment = envs.get_environment("ant", backend="positional")
state = jax.jit(environment.reset)(jax.random.key(0))
step = jax.jit(environment.step)
heights = []
for number in range(5):
    state = step(state, 0.3 * jnp.sin(number + jnp.arange(8.0)))
    heights.append(float(state.pipeline_state.x.pos[0, 2]))
print(json.dumps(heights))
