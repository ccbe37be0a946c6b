"""Keys and values in pages: blocks of slots that are allocated to sequences.

A sequence's positions lie in the blocks of its row of a block table: position p in slot p % Z of
block `table[p // Z]`, where Z is the block size. All shapes are static; rows and tokens that pad a
batch write to block 0, which is therefore never allocated.

Axis names: R rows, T new tokens of a row, C blocks of a row, N blocks, Z slots of a block,
K key-value heads, H head_dim. Kwon et al., "PagedAttention", 2023.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from models.layers.cache import KVCache
from models.layers.masks import Reach, first_seen, most_seen

SCRATCH_BLOCK = 0


class Pages(NamedTuple):
    """Keys (already rotated) and values of one layer [N, Z, K, H], or of L layers that run as one
    stack [N, L, Z, K, H]."""

    keys: jax.Array
    values: jax.Array

    @classmethod
    def empty(
        cls,
        blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: DTypeLike,
        stack: int | None = None,
    ) -> "Pages":
        """Zeros. `blocks` counts the scratch block, `stack` the layers of a stack."""
        layers = () if stack is None else (stack,)
        zeros = jnp.zeros((blocks, *layers, block_size, num_kv_heads, head_dim), dtype)
        return cls(zeros, zeros)

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self.keys.shape[-3]


class Rows(NamedTuple):
    """The positions of a batch's rows in the pages."""

    tables: jax.Array  # int32 [R, C]: the blocks of each row; what it does not need is the scratch
    starts: jax.Array  # int32 [R]: the position of its first new token
    counts: jax.Array  # int32 [R]: how many of its T tokens are text; 0 = the row is padding
    places: jax.Array | None = None  # int32 [R]: where encoder-decoders have its source

    def positions(self, length: int) -> jax.Array:
        """The positions of `length` new tokens, int32 [R, length]."""
        return self.starts[:, None] + jnp.arange(length, dtype=jnp.int32)


class Seen(NamedTuple):
    """The part of the rows' tables that new tokens see."""

    rows: Rows  # whose positions count from the first of these blocks
    start: jax.Array  # int32 [R]: the position of that block's first slot


def seen(rows: Rows, reach: Reach, length: int, block_size: int) -> Seen:
    """What `length` new tokens of each row see in layers of this reach: all blocks, or so many that
    they hold every key within it. Tables have no other blocks then, so that those may go."""
    blocks = rows.tables.shape[1]
    # So many positions in a row touch one block more than they fill, wherever they begin.
    needed = blocks if reach is None else (most_seen(reach, length) - 2) // block_size + 2
    if needed >= blocks:
        return Seen(rows, jnp.zeros_like(rows.starts))
    first = first_seen(reach, rows.starts) // block_size
    # Behind the end of a table stands its last block again: positions that no query sees.
    columns = jnp.minimum(first[:, None] + jnp.arange(needed, dtype=jnp.int32), blocks - 1)
    start = first * block_size
    tables = jnp.take_along_axis(rows.tables, columns, axis=1)
    return Seen(Rows(tables, rows.starts - start, rows.counts), start)


def last_outputs(x: jax.Array, rows: Rows) -> jax.Array:
    """The outputs [R, D] after the last new token of each row, of outputs [R, T, D]."""
    last = jnp.maximum(rows.counts - 1, 0)[:, None, None]
    return jnp.take_along_axis(x, last, axis=1)[:, 0]


def places(rows: Rows, length: int, block_size: int) -> tuple[jax.Array, jax.Array]:
    """The blocks and the slots in them of `length` new tokens, int32 [R, length] each."""
    position = rows.positions(length)
    is_text = jnp.arange(length) < rows.counts[:, None]
    place = jnp.minimum(position // block_size, rows.tables.shape[1] - 1)
    block = jnp.take_along_axis(rows.tables, place, axis=1)
    return jnp.where(is_text, block, SCRATCH_BLOCK), position % block_size


def store(
    pages: Pages,
    where: tuple[jax.Array, ...],
    keys: jax.Array,
    values: jax.Array,
    scales: tuple[jax.Array, jax.Array] | None,
) -> Pages:
    """The pages with keys and values [R, T, K, H] in blocks and slots int32 [R, T]; the number of a
    stack's layer stands between these."""
    key_scale, value_scale = scales or (None, None)
    return Pages(
        pages.keys.at[where].set(_store_narrow(keys, pages.keys.dtype, key_scale)),
        pages.values.at[where].set(_store_narrow(values, pages.values.dtype, value_scale)),
    )


@dataclass(frozen=True)
class PagedCache:
    """A layer's pages for the rows of a batch, as a cache for `Attention`."""

    pages: Pages
    rows: Rows
    scales: tuple[jax.Array, jax.Array] | None = None  # FP32 [1]: of keys, of values
    layer: jax.Array | None = None  # which of a stack's layers it is, int32 []

    def write(self, keys: jax.Array, values: jax.Array, start: ArrayLike) -> "PagedCache":
        """The cache with keys and values [R, T, K, H] of the rows' new tokens.

        `start` is not looked at: `rows` says where each row begins. Pages of fewer bits hold them
        divided by their scales; what exceeds the range becomes the largest number in it.
        """
        block, slot = places(self.rows, keys.shape[1], self.pages.block_size)
        where = (block, slot) if self.layer is None else (block, self.layer, slot)
        return replace(self, pages=store(self.pages, where, keys, values, self.scales))

    def read(self, dtype: DTypeLike) -> KVCache:
        """Keys and values [R, C · Z, K, H] in the order of positions."""
        key_scale, value_scale = self.scales or (None, None)
        keys, values = (_gather(pages, self.rows.tables, self.layer) for pages in self.pages)
        return KVCache(_read(keys, dtype, key_scale), _read(values, dtype, value_scale))


class StackedPagedCaches(NamedTuple):
    """The caches of layers that run as one stack."""

    pages: Pages
    rows: Rows
    scales: tuple[jax.Array, jax.Array] | None = None  # FP32 [L, 1]

    def layer(self, number: jax.Array) -> PagedCache:
        """The cache of one layer."""
        scales = None if self.scales is None else (self.scales[0][number], self.scales[1][number])
        return PagedCache(self.pages, self.rows, scales, number)

    def put(self, number: jax.Array, cache: PagedCache) -> "StackedPagedCaches":
        """The caches with what one layer has written."""
        return self._replace(pages=cache.pages)


def _store_narrow(x: jax.Array, dtype: DTypeLike, scale: jax.Array | None) -> jax.Array:
    if x.dtype == dtype:
        return x
    largest = float(jnp.finfo(dtype).max)
    scaled = x.astype(jnp.float32) if scale is None else x.astype(jnp.float32) / scale
    return jnp.clip(scaled, -largest, largest).astype(dtype)


def _read(x: jax.Array, dtype: DTypeLike, scale: jax.Array | None) -> jax.Array:
    if x.dtype == dtype:
        return x
    return x.astype(dtype) if scale is None else (x.astype(jnp.float32) * scale).astype(dtype)


def _gather(pages: jax.Array, table: jax.Array, layer: jax.Array | None) -> jax.Array:
    if layer is None:
        taken = jnp.take(pages, table, axis=0, mode="clip")  # [R, C, Z, K, H]
    else:
        taken = pages.at[table, layer].get(mode="clip")
    rows, blocks, slots, *others = taken.shape
    return taken.reshape(rows, blocks * slots, *others)
