"""Random numbers that depend on a request's seed and the place in its answer alone.

A hash of (seed, place, token), because generators of JAX are either not supported by the device's
compiler (Threefry) or draw other numbers in a batch (rbg).
"""

import jax
import jax.numpy as jnp

from models.hashed_random import absorbed, mixed

_START = 0x9E3779B9


def gumbel(seeds: jax.Array, numbers: jax.Array, vocab_size: int) -> jax.Array:
    """Gumbel noise FP32 [R, V] of seeds uint32 [R, 2] and numbers int32 [R]."""
    state = jnp.uint32(_START)
    for word in (seeds[:, :1], seeds[:, 1:], numbers[:, None].astype(jnp.uint32)):
        state = absorbed(state, word)
    bits = mixed(mixed(state ^ jnp.arange(vocab_size, dtype=jnp.uint32)) + state)
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23  # exact: never 0, never 1
    return -jnp.log(-jnp.log(uniform))
