"""How the cores of one model share paged caches, as the decoder that reads them sees it."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from models.layers.attention import Attend, Attention
from models.layers.cache import Cache
from models.layers.paged_cache import Pages, Rows
from models.parameters import merge, split


class SharedCache(Cache, Protocol):
    """A layer's pages for the rows of a batch."""

    @property
    def pages(self) -> Pages:
        """The pages with what was written."""


class PagedSplit(Protocol):
    """Which core has what of the pages, and how attention looks at them."""

    @property
    def attend(self) -> Attend:
        """`dot_product_attention` to keys of such pages."""

    @property
    def pages(self) -> PartitionSpec:
        """The partition spec of pages [N, Z, K, H]."""

    def key_slots(self, blocks: int, block_size: int) -> jax.Array:
        """The positions int32 [C · Z] of the keys of a row, in the order in which they are read."""

    def cache(
        self, pages: Pages, rows: Rows, scales: tuple[jax.Array, jax.Array] | None
    ) -> SharedCache:
        """The cache of a layer; scales are as in `PagedCache`."""


def with_paged_split(
    graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array], paged_split: PagedSplit
) -> nnx.GraphDef[Any]:
    """The decoder with paged caches that are split so."""
    shapes = {n: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for n, leaf in parameters.items()}
    model = merge(graph, shapes)
    model.cache_split = paged_split
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            module.mix = paged_split.attend
    return split(model)[0]
