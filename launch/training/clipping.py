"""The global norm of the gradient, and clipping by it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from models.varying import varying_axes


def global_norm(gradients: Mapping[str, jax.Array]) -> jax.Array:
    """The norm over the whole model, FP32 [], of a core's parts of its gradients.

    A parameter that several cores hold counts once: only parts that differ between cores, by the
    types of their arrays, are added up. Outside of a `jax.shard_map` region arrays are whole.
    """
    squares: dict[frozenset[str], jax.Array] = defaultdict(lambda: jnp.float32(0))
    for gradient in gradients.values():
        squares[varying_axes(gradient)] += jnp.sum(jnp.square(gradient.astype(jnp.float32)))
    return jnp.sqrt(sum(_over_cores(total, axes) for axes, total in squares.items()))


def _over_cores(total: jax.Array, axes: frozenset[str]) -> jax.Array:
    return jax.lax.psum(total, tuple(sorted(axes))) if axes else total


def clip_by_global_norm(gradients: Any, norm: jax.Array, largest: float | None) -> Any:
    """Gradients scaled so that their norm, FP32 [], becomes at most `largest`.

    Pascanu et al., "On the difficulty of training RNNs", 2013.
    """
    if largest is None:
        return gradients
    factor = jnp.where(norm < largest, 1.0, largest / norm)
    return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), gradients)
