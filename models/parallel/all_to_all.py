"""Attention of whole texts by some heads each: cores exchange positions for heads, and back.

Jacobs et al., "DeepSpeed Ulysses", 2023. Axis names as in `models.layers.attention`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def all_to_all_attention(
    axis: str, query: jax.Array, keys: jax.Array, values: jax.Array, attend: Attend
) -> jax.Array:
    """A core's positions of what `attend` makes of whole texts, within a `jax.shard_map`.

    query [B, T, N, H], keys and values [B, T, K, H] -> [B, T, N, H], where N is a multiple of the
    number of cores; `attend` gets [B, cores·T, N / cores, H] and as many heads of keys and values,
    or fewer. Keys and values of fewer heads than cores go to several.
    """
    cores = jax.lax.axis_size(axis)
    heads = math.lcm(keys.shape[2], cores)
    keys, values = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (keys, values))

    def to_heads(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, axis, split_axis=2, concat_axis=1, tiled=True)

    attended = attend(to_heads(query), to_heads(keys), to_heads(values))
    return jax.lax.all_to_all(attended, axis, split_axis=1, concat_axis=2, tiled=True)
