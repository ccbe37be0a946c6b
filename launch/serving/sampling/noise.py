"""Random numbers that depend on a request's seed and the place in its answer alone.

A hash of (seed, place, token), because generators of JAX are either not supported by the device's
compiler (Threefry) or draw other numbers in a batch (rbg).
"""

import jax
import jax.numpy as jnp

_FIRST, _SECOND, _START = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B9


def gumbel(seeds: jax.Array, numbers: jax.Array, vocab_size: int) -> jax.Array:
    """Gumbel noise FP32 [R, V] of seeds uint32 [R, 2] and numbers int32 [R]."""
    state = jnp.uint32(_START)
    for word in (seeds[:, :1], seeds[:, 1:], numbers[:, None].astype(jnp.uint32)):
        state = _mixed(state ^ word) + jnp.uint32(_START)
    bits = _mixed(_mixed(state ^ jnp.arange(vocab_size, dtype=jnp.uint32)) + state)
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23  # exact: never 0, never 1
    return -jnp.log(-jnp.log(uniform))


def _mixed(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (Appleby): every bit of x changes every bit of the result."""
    x = (x ^ (x >> 16)) * jnp.uint32(_FIRST)
    x = (x ^ (x >> 13)) * jnp.uint32(_SECOND)
    return x ^ (x >> 16)
