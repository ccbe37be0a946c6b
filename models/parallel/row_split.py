"""Attention data parallelism: groups of cores have rows of the batch each for attention, and share
everything else.

Of the paged cache [G · N, Z, K, H] a group along the axis `attention_data` has N blocks, which its
block tables count from 0; block 0 of each is the scratch block. Of a batch of R rows the first
R / G belong to the first group. Weights of attention are the same in all groups; feed-forward
blocks and the vocabulary are split over all cores (NxD Inference's "attention data parallelism",
SGLang's "DP attention"). Axis names as in `models.layers.paged_cache`; G groups.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from models.errors import ShardingError
from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.cache import KVCache
from models.layers.masks import Visibility
from models.layers.paged_cache import PagedCache, Pages, Rows

AXIS = "attention_data"
HEADS = "model"
_ROWS = PartitionSpec(AXIS)
_HEADS = PartitionSpec(AXIS, None, HEADS, None)


@dataclass(frozen=True)
class RowSplit:
    """Over which cores rows are split: a mesh with the axes `model` and `attention_data`."""

    mesh: Mesh
    axis: ClassVar[str] = AXIS
    pages: ClassVar[PartitionSpec] = _HEADS

    @property
    def size(self) -> int:
        """The number G of groups that share the rows of a batch."""
        return int(self.mesh.shape[AXIS])

    def key_slots(self, blocks: int, block_size: int) -> jax.Array:
        """The positions int32 [C · Z] of the keys of a row, in the order in which they are read."""
        return jnp.arange(blocks * block_size, dtype=jnp.int32)

    def cache(
        self, pages: Pages, rows: Rows, scales: tuple[jax.Array, jax.Array] | None
    ) -> "RowSplitCache":
        """The cache of a layer."""
        return RowSplitCache(pages, rows, scales, self)

    def attend(
        self,
        query: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        call: AttentionCall,
    ) -> jax.Array:
        """`dot_product_attention` of rows that are split: query [R, T, N, H], keys and values
        [R, S, K, H], mask [R, T, S]. Raises ShardingError for another mask, or a bias."""
        if call.bias is not None or call.mask is None or isinstance(call.mask, Visibility):
            raise ShardingError("attention split by rows needs a mask and does not support a bias")

        def own(
            query: jax.Array,
            keys: jax.Array,
            values: jax.Array,
            mask: jax.Array,
            sinks: jax.Array | None,
        ) -> jax.Array:
            return dot_product_attention(query, keys, values, call._replace(mask=mask, sinks=sinks))

        return jax.shard_map(
            own,
            mesh=self.mesh,
            in_specs=(_HEADS, _HEADS, _HEADS, _ROWS, PartitionSpec(HEADS)),
            out_specs=_HEADS,
        )(query, keys, values, call.mask, call.sinks)


@dataclass(frozen=True)
class RowSplitCache:
    """A `PagedCache` with blocks and rows that are split."""

    pages: Pages
    rows: Rows
    scales: tuple[jax.Array, jax.Array] | None
    split: RowSplit

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> "RowSplitCache":
        """The cache with keys and values [R, T, K, H]: every group keeps those of its rows."""

        def own(pages: Pages, keys: jax.Array, values: jax.Array, rows: Rows, scales: Any) -> Pages:
            return PagedCache(pages, rows, scales).write(keys, values, start).pages

        pages = jax.shard_map(
            own,
            mesh=self.split.mesh,
            in_specs=(_HEADS, _HEADS, _HEADS, _ROWS, PartitionSpec()),
            out_specs=_HEADS,
        )(self.pages, keys, values, self.rows, self.scales)
        return RowSplitCache(pages, self.rows, self.scales, self.split)

    def read(self, dtype: DTypeLike) -> KVCache:
        """Keys and values [R, C · Z, K, H] in the order of positions."""

        def own(pages: Pages, rows: Rows, scales: Any) -> KVCache:
            return PagedCache(pages, rows, scales).read(dtype)

        return jax.shard_map(
            own,
            mesh=self.split.mesh,
            in_specs=(_HEADS, _ROWS, PartitionSpec()),
            out_specs=_HEADS,
        )(self.pages, self.rows, self.scales)
