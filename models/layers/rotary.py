"""Rotary position embedding (Su et al., "RoFormer", 2021), in the half-split layout of Llama."""

import jax
import jax.numpy as jnp


def rotary_angles(positions: jax.Array, head_dim: int, theta: float) -> jax.Array:
    """Angles in radians, FP32: positions [T] -> [T, head_dim / 2].

    Pair i of position t turns by t · theta^(-2i / head_dim).
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    return positions.astype(jnp.float32)[:, None] * theta**-exponents


def apply_rotary(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turns the pairs (x[i], x[i + head_dim/2]) of x [B, T, heads, head_dim] by angles
    [T, head_dim / 2]. The rotation is computed in FP32; the result has the dtype of `x`."""
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
