"""Tiles that hold all of some dimensions, over which windows or steps go."""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.lower.chain.boxes import Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes, tile
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access


class Slide:
    """Values with sliding dimensions within partitions, and all others on them."""

    def __init__(
        self, builder: KernelBuilder, sliding: Sequence[int], views: Sequence[View]
    ) -> None:
        self.builder = builder
        self.sliding = list(sliding)
        rank = len(views[0].shape)
        kept = [dim for dim in range(rank) if dim not in self.sliding]
        self.views = views
        outer = [Swept(view.along(kept), tuple(range(len(kept)))) for view in views]
        shape = tuple(views[0].shape[dim] for dim in kept)
        self.sweep = Sweep(builder, shape, frozenset(), outer)

    def sizes(self, number: int) -> tuple[int, ...]:
        """Elements along the sliding dimensions."""
        return tuple(self.views[number].shape[dim] for dim in self.sliding)

    def hbm(self, number: int, region: Region, position: Position) -> Access:
        """All of a value that belongs to a box."""
        strides = [self.views[number].strides[dim] for dim in self.sliding]
        sizes = self.sizes(number)
        return self.sweep.hbm(number, region.partitions, position, sizes, strides)

    def load(self, number: int, region: Region, position: Position) -> Access:
        """Loads a value's part into a new tile."""
        src = self.hbm(number, region, position)
        dst = tile(self.builder, lanes(region), self.sizes(number), src.element_type)
        self.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def store(self, number: int, region: Region, position: Position, data: Access) -> None:
        """Stores a tile where the value lies."""
        self.builder.emit(DmaCopy(dst=self.hbm(number, region, position), src=data))
