"""Decode context parallelism: cores that would hold the same keys and values share their positions.

Of every block of the paged cache [N, Z, K, H] a core along the axis `kv_replica` has Z / n slots.
It looks at those with all query heads of its key-value heads, and the parts of the softmax are
added by their largest scores (Dao et al., "FlashAttention", 2022; vLLM's "decode context
parallel"). Axis names as in `models.layers.paged_cache`; S = C · Z key positions.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from models.errors import ShardingError
from models.layers.attention import AttentionCall
from models.layers.cache import KVCache
from models.layers.masks import Visibility
from models.layers.paged_cache import SCRATCH_BLOCK, PagedCache, Pages, Rows, places, store
from models.parallel.blockwise import Scoring, Sums, add, no_sums

AXIS = "kv_replica"
HEADS = "model"
POSITIONS = PartitionSpec(None, AXIS, HEADS, None)  # of pages, and of keys that were read
_HEADS = PartitionSpec(None, None, HEADS, None)


@dataclass(frozen=True)
class CacheSplit:
    """Over which cores the cache's positions are split: a mesh with the axes `model` and
    `kv_replica`."""

    mesh: Mesh
    axis: ClassVar[str] = AXIS
    pages: ClassVar[PartitionSpec] = POSITIONS

    @property
    def size(self) -> int:
        """The number n of cores that share the positions of a cache."""
        return int(self.mesh.shape[AXIS])

    def key_slots(self, blocks: int, block_size: int) -> jax.Array:
        """The positions int32 [S] of the keys of a row, in the order in which they are read: those
        of the first core first."""
        slots = jnp.arange(blocks * block_size, dtype=jnp.int32)
        return slots.reshape(blocks, self.size, -1).swapaxes(0, 1).reshape(-1)

    def cache(
        self, pages: Pages, rows: Rows, scales: tuple[jax.Array, jax.Array] | None
    ) -> "SplitPagedCache":
        """The cache of a layer."""
        return SplitPagedCache(pages, rows, scales, self)

    def attend(
        self,
        query: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        call: AttentionCall,
    ) -> jax.Array:
        """`dot_product_attention` to keys whose positions are split: query [R, T, N, H], keys and
        values [R, S, K, H], mask [R, T, S]. Raises ShardingError for another mask, or a bias."""
        if call.bias is not None or call.mask is None or isinstance(call.mask, Visibility):
            raise ShardingError(
                "a cache split by position needs a mask and does not support a bias"
            )
        scoring = Scoring(scale=call.factor(query.shape[-1]), softcap=call.softcap)
        return jax.shard_map(
            partial(_attend, scoring),
            mesh=self.mesh,
            in_specs=(
                _HEADS,
                POSITIONS,
                POSITIONS,
                PartitionSpec(None, None, AXIS),
                PartitionSpec(HEADS),
            ),
            out_specs=PartitionSpec(None, None, (HEADS, AXIS), None),
        )(query, keys, values, call.mask, call.sinks)


def _attend(
    scoring: Scoring,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    sinks: jax.Array | None,
) -> jax.Array:
    """A core's query heads [R, T, N / n, H] of its group's, seeing the keys of all."""
    rows, length, heads, head_dim = query.shape
    by_key = (rows, length, keys.shape[2], -1, head_dim)
    grouped = query.reshape(by_key).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(rows, keys.shape[2], -1, head_dim)  # [R, K, G·T, H]
    keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
    first = jax.lax.pcast(no_sums(grouped), AXIS, to="varying")
    if sinks is not None:
        first = _of_sinks(first, sinks, length)
    sums = add(scoring, first, grouped, keys, values, mask)
    shrink = jnp.exp(sums.largest - jax.lax.pmax(sums.largest, AXIS))
    both = jnp.concatenate([sums.values, sums.weights], axis=-1) * shrink
    both = both.reshape(rows, keys.shape[1], -1, length, head_dim + 1).transpose(0, 3, 1, 2, 4)
    both = both.reshape(rows, length, heads, head_dim + 1)
    both = jax.lax.psum_scatter(both, AXIS, scatter_dimension=2, tiled=True)
    return (both[..., :-1] / both[..., -1:]).astype(query.dtype)


def _of_sinks(nothing: Sums, sinks: jax.Array, length: int) -> Sums:
    """The softmax [R, K, G·T] that has seen the sinks [N] alone, which count on one core."""
    rows = jnp.repeat(sinks.astype(jnp.float32).reshape(nothing.values.shape[1], -1), length, 1)
    counts = jnp.where(jax.lax.axis_index(AXIS) == 0, 1.0, 0.0)
    return nothing._replace(
        weights=nothing.weights + counts,
        largest=jnp.maximum(nothing.largest, rows[..., None]),
    )


@dataclass(frozen=True)
class SplitPagedCache:
    """A `PagedCache` with pages whose slots are split."""

    pages: Pages
    rows: Rows
    scales: tuple[jax.Array, jax.Array] | None
    split: CacheSplit

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> "SplitPagedCache":
        """The cache with keys and values [R, T, K, H]: every core keeps those of its slots."""

        def own(pages: Pages, keys: jax.Array, values: jax.Array, rows: Rows, scales: Any) -> Pages:
            size = pages.keys.shape[1]
            block, slot = places(rows, keys.shape[1], size * self.split.size)
            slot = slot - size * jax.lax.axis_index(AXIS)
            is_own = (slot >= 0) & (slot < size)
            where = jnp.where(is_own, block, SCRATCH_BLOCK), jnp.where(is_own, slot, 0)
            return store(pages, where, keys, values, scales)

        none = PartitionSpec()
        pages = jax.shard_map(
            own,
            mesh=self.split.mesh,
            in_specs=(POSITIONS, _HEADS, _HEADS, none, none),
            out_specs=POSITIONS,
        )(self.pages, keys, values, self.rows, self.scales)
        return SplitPagedCache(pages, self.rows, self.scales, self.split)

    def read(self, dtype: DTypeLike) -> KVCache:
        """Keys and values [R, S, K, H] in the order of `CacheSplit.key_slots`."""

        def own(pages: Pages, rows: Rows, scales: Any) -> KVCache:
            return PagedCache(pages, rows, scales).read(dtype)

        none = PartitionSpec()
        return jax.shard_map(
            own, mesh=self.split.mesh, in_specs=(POSITIONS, none, none), out_specs=POSITIONS
        )(self.pages, self.rows, self.scales)
