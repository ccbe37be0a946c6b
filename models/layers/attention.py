"""Causal grouped-query attention with rotary positions and a key-value cache of static shape.

Axis names: B batch, T query positions, S key positions, K key-value heads, G query heads per
key-value head, H = head_dim, D model width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from models.layers.linear import Linear
from models.layers.rotary import apply_rotary


class KVCache(NamedTuple):
    """Keys (already rotated) and values of one layer [B, S, K, H]; slot s holds position s."""

    keys: jax.Array
    values: jax.Array

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> "KVCache":
        """The cache with keys and values [B, T, K, H] at positions start … start + T - 1.

        start + T must not exceed S: the position would be clamped.
        """
        return KVCache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, start, axis=1),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, start, axis=1),
        )


def causal_mask(query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """mask[t, s] = key_positions[s] <= query_positions[t]: where query t may look at key s."""
    return key_positions[None, :] <= query_positions[:, None]


def dot_product_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array
) -> jax.Array:
    """softmax(query · keys / sqrt(H)) · values, the softmax in FP32.

    query [B, T, K·G, H], keys and values [B, S, K, H], mask [T, S] -> [B, T, K·G, H]. Query head
    n looks at key-value head n // G.
    """
    batch, length, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]
    # Batch axes first, and the G queries of one key side by side, make plain batched matmuls.
    grouped = query.reshape(batch, length, num_kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, num_kv_heads, -1, head_dim)  # [B, K, G·T, H]
    scores = jnp.einsum(
        "bkqh,bskh->bkqs", grouped, keys, preferred_element_type=jnp.float32
    )  # [B, K, G·T, S]
    mask = jnp.tile(mask, (num_heads // num_kv_heads, 1))  # [G·T, S]
    scores = jnp.where(mask, scores * head_dim**-0.5, jnp.finfo(jnp.float32).min)
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - largest)
    # Dividing by the sum after the product touches H numbers per query instead of S.
    attended = jnp.einsum(
        "bkqs,bskh->bkqh",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    attended = attended / jnp.sum(weights, axis=-1, keepdims=True)
    attended = attended.reshape(batch, num_kv_heads, -1, length, head_dim)
    attended = attended.transpose(0, 3, 1, 2, 4).reshape(query.shape)
    return attended.astype(query.dtype)


class Attention(nnx.Module):
    """Self-attention of `num_heads` query heads that share `num_kv_heads` keys and values.

    Ainslie et al., "GQA", 2023. Query head n uses key-value head n // (num_heads / num_kv_heads).
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:

        def project(heads: int) -> Linear:
            return Linear(
                [dim], [heads, head_dim], stddev=stddev, param_dtype=param_dtype, rngs=rngs
            )

        self.query = project(num_heads)
        self.key = project(num_kv_heads)
        self.value = project(num_kv_heads)
        self.output = Linear(
            [num_heads, head_dim], [dim], stddev=out_stddev, param_dtype=param_dtype, rngs=rngs
        )

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array,
        mask: jax.Array,
        cache: KVCache | None = None,
        start: ArrayLike = 0,
    ) -> tuple[jax.Array, KVCache | None]:
        """x [B, T, D], rotary angles [T, H / 2], mask [T, S] -> ([B, T, D], the updated cache).

        Without a cache S = T; with one, x stands at positions start … start + T - 1.
        """
        query = apply_rotary(self.query(x), angles)  # [B, T, K·G, H]
        keys = apply_rotary(self.key(x), angles)  # [B, T, K, H]
        values = self.value(x)  # [B, T, K, H]
        if cache is not None:
            cache = cache.write(keys, values, start)
            keys, values = cache
        return self.output(dot_product_attention(query, keys, values, mask)), cache
