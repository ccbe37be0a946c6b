"""Keys and values of earlier positions, in arrays of static shape."""

from typing import NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike


class Cache(Protocol):
    """The interface of a layer's cache for self-attention."""

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> Self:
        """The cache with the keys and values [B, T, K, H] of new positions from `start` on."""

    def read(self, dtype: DTypeLike) -> "KVCache":
        """Keys and values of all positions that the new ones may look at [B, S, K, H], in the
        dtype that they were written in."""


class KVCache(NamedTuple):
    """Keys (already rotated) and values of one layer [B, S, K, H]; slot s holds position s."""

    keys: jax.Array
    values: jax.Array

    @classmethod
    def empty(
        cls, batch: int, length: int, num_kv_heads: int, head_dim: int, dtype: DTypeLike
    ) -> "KVCache":
        """A cache of `length` slots for `batch` sequences."""
        zeros = jnp.zeros((batch, length, num_kv_heads, head_dim), dtype)
        return cls(zeros, zeros)

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> "KVCache":
        """The cache with keys and values [B, T, K, H] at positions start … start + T - 1.

        start + T must not exceed S: the position would be clamped.
        """
        return KVCache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, start, axis=1),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, start, axis=1),
        )

    def read(self, dtype: DTypeLike) -> "KVCache":
        """Keys and values are stored as they are read."""
        return self


class StackedCaches(NamedTuple):
    """The caches of blocks that run as one stack, [B, L, S, K, H] each."""

    layers: KVCache

    @classmethod
    def of(cls, cache: KVCache, count: int) -> "StackedCaches":
        """Stacks as many copies of a cache."""
        return cls(KVCache(*(jnp.repeat(x[:, None], count, axis=1) for x in cache)))

    @property
    def keys(self) -> jax.Array:
        """The keys of all blocks."""
        return self.layers.keys

    def layer(self, number: jax.Array) -> KVCache:
        """The cache of one block."""
        return KVCache(
            *(jax.lax.dynamic_index_in_dim(x, number, 1, keepdims=False) for x in self.layers)
        )

    def put(self, number: jax.Array, cache: KVCache) -> "StackedCaches":
        """The caches with another one for one block."""
        put = jax.lax.dynamic_update_index_in_dim
        pairs = zip(self.layers, cache, strict=True)
        return StackedCaches(KVCache(*(put(stack, layer, number, 1) for stack, layer in pairs)))


BlockCache = KVCache | StackedCaches
"""What one entry of a model's blocks keeps."""
