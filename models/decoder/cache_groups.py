"""Layers of a paged cache that share a block table.

Layers that see the whole text need all its blocks, layers that see a window the last ones alone. A
group of layers has a table of its own, so that its blocks can go when its layers see them no more.
All groups have as many layers, but for what is missing in the last of a kind, and take their blocks
from the same pages: layer i of every group has pages i (vLLM's "hybrid KV cache manager").
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.decoder.config import DecoderConfig
from models.layers.masks import Chunks, Reach
from models.layers.paged_cache import Rows
from models.parameters import merge, split

_CLOSE = 1.25  # a longer kind of so many times the layers of the shortest sets the size


@dataclass(frozen=True)
class CacheGroups:
    """Which group each layer belongs to, and which of the pages it has."""

    groups: tuple[int, ...]  # of each layer
    places: tuple[int, ...]  # of each layer: the index of its pages

    @classmethod
    def single(cls, layers: int) -> "CacheGroups":
        """The groups of a model whose layers share one table."""
        return cls((0,) * layers, tuple(range(layers)))

    @classmethod
    def by_reach(cls, reaches: Sequence[Reach]) -> "CacheGroups":
        """Groups of layers of the same reach, given those of all layers."""
        kinds: dict[Reach, list[int]] = defaultdict(list)
        for layer, reach in enumerate(reaches):
            kinds[reach].append(layer)
        counts = [len(layers) for layers in kinds.values()]
        size = max(counts) if max(counts) < _CLOSE * min(counts) else min(counts)
        groups, places = [0] * len(reaches), [0] * len(reaches)
        first = 0
        for layers in kinds.values():
            for index, layer in enumerate(layers):
                groups[layer], places[layer] = first + index // size, index % size
            first += -(-len(layers) // size)
        return cls(tuple(groups), tuple(places))

    @property
    def count(self) -> int:
        """How many groups there are."""
        return max(self.groups) + 1

    @property
    def size(self) -> int:
        """How many layers the largest group has."""
        return max(self.places) + 1

    def of_groups(self, of_layers: Sequence[Reach]) -> list[Reach]:
        """The farthest reach of each group's layers, given those of all layers."""
        kinds: list[set[Reach]] = [set() for _ in range(self.count)]
        for group, reach in zip(self.groups, of_layers, strict=True):
            kinds[group].add(reach)
        return [next(iter(kind)) if len(kind) == 1 else None for kind in kinds]

    def rows(self, rows: Rows) -> list[Rows]:
        """The rows of each group, whose tables stand side by side in `rows`, int32 [R, G · C]."""
        tables = jnp.split(rows.tables, self.count, axis=1)
        return [rows._replace(tables=table) for table in tables]


def reaches_within(config: DecoderConfig, context: int) -> list[Reach]:
    """The reach of each layer; None where it is the whole text for texts of that length."""
    windows = (config.window(layer) for layer in range(config.num_layers))
    return [None if _size(window) >= context else window for window in windows]


def with_cache_groups(
    graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array], groups: CacheGroups
) -> nnx.GraphDef[Any]:
    """The decoder with these groups."""
    shapes = {n: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for n, leaf in parameters.items()}
    model = merge(graph, shapes)
    model.cache_groups = groups
    return split(model)[0]


def _size(reach: Reach) -> float:
    if reach is None:
        return float("inf")
    return reach.size if isinstance(reach, Chunks) else reach
