"""Windows that slide over some dimensions, and tiles that hold all of those dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.hlo.graph import Op
from neuronjax.lower.chain.boxes import Region
from neuronjax.lower.chain.sweep import Position, Sweep, Swept, lanes, tile
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access

MOST_DIMS = 4
"""Free dimensions of an access."""


@dataclass(frozen=True)
class Windows:
    """How windows slide: one number for each dimension."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def is_padded(self) -> bool:
        return any(map(any, self.padding)) or any(dilation != 1 for dilation in self.base_dilations)

    @property
    def sliding(self) -> list[int]:
        """Dimensions in which windows are more than the elements themselves."""
        plain = zip(self.sizes, self.strides, strict=True)
        return [dim for dim, (size, stride) in enumerate(plain) if size != 1 or stride != 1]


def windows_of(op: Op) -> Windows:
    """The attributes of an operation, with what is left out."""
    a = op.attributes
    sizes = a["window_dimensions"]
    ones = (1,) * len(sizes)
    padding = a.get("padding", np.zeros((len(sizes), 2), int))
    return Windows(
        sizes=sizes,
        strides=a.get("window_strides", ones),
        dilations=a.get("window_dilations", ones),
        base_dilations=a.get("base_dilations", ones),
        padding=tuple((int(low), int(high)) for low, high in padding),
    )


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
        outer = [
            Swept(
                replace(
                    view,
                    shape=tuple(view.shape[dim] for dim in kept),
                    strides=tuple(view.strides[dim] for dim in kept),
                ),
                tuple(range(len(kept))),
            )
            for view in views
        ]
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
        """A tile with it."""
        src = self.hbm(number, region, position)
        dst = tile(self.builder, lanes(region), self.sizes(number), src.element_type)
        self.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def store(self, number: int, region: Region, position: Position, data: Access) -> None:
        """A tile goes where the value lies."""
        self.builder.emit(DmaCopy(dst=self.hbm(number, region, position), src=data))
