"""Clipping by the global norm of the gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def clip_by_global_norm(gradients: Any, largest: float | None) -> tuple[Any, jax.Array]:
    """(gradients whose norm is at most `largest`, their norm before, FP32 []).

    Gradients are arrays of the whole model, however they are sharded: a parameter that several
    cores hold counts once. Pascanu et al., "On the difficulty of training RNNs", 2013.
    """
    norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), gradients))
    if largest is None:
        return gradients, norm

    def clip(gradient: jax.Array) -> jax.Array:
        scaled = gradient / norm.astype(gradient.dtype) * largest
        return jax.lax.select(jnp.broadcast_to(norm < largest, scaled.shape), gradient, scaled)

    return jax.tree.map(clip, gradients), norm
