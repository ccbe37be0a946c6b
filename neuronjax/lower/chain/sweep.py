"""Walking over values of one shape: rows of some dimensions in tiles, all others around them.

A sweep numbers its values: those that are read and those that are written. What lies on partitions,
what on the free axes of a tile and what is looped over is decided as it is for fused chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from neuronjax.lower.chain.boxes import Axis, Region, boxes, regions
from neuronjax.lower.chain.positions import Position, element, nest, origin
from neuronjax.lower.chain.tile_program import Input, Node, TileProgram, simplified
from neuronjax.lower.values.view import View, dense_strides, walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access


@dataclass(frozen=True)
class Swept:
    """A value of a sweep: where it lies, and the dimension of the domain for each of its own."""

    view: View
    dims: tuple[int, ...]


@dataclass
class Sweep:
    """A walk over values. `inner` dimensions lie within partitions, in chunks if they are long and
    need not be `whole`."""

    builder: KernelBuilder
    shape: tuple[int, ...]
    inner: frozenset[int]
    values: Sequence[Swept]
    words: int | None = None
    """Words of a partition for each element of a row; None: what tuning says."""
    whole: bool = False

    def __post_init__(self) -> None:
        words = self.builder.tuning.sweep_words if self.words is None else self.words
        everything = frozenset(range(len(self.shape)))
        word = Node("", (), everything, np.dtype(np.uint64), np.dtype(np.uint64))
        self.program = simplified(
            TileProgram(
                self.shape,
                self.inner,
                tuple(self._input(number, value) for number, value in enumerate(self.values)),
                (word,) * (words // 2),
                (),
            )
        )

    def _input(self, number: int, swept: Swept) -> Input:
        strides = [0] * len(self.shape)
        for dim, stride in zip(swept.dims, swept.view.strides, strict=True):
            strides[dim] = stride
        return Input(
            number, tuple(strides), swept.view.offset, np.dtype(np.uint8), frozenset(swept.dims)
        )

    def regions(self) -> list[Region]:
        """The boxes of the domain."""
        return regions(self.program, self.builder.tuning, rows_whole=self.whole)

    def lanes(self, most: int = PARTITIONS) -> list[Region]:
        """Boxes of what is not in rows, up to `most` on partitions, within loops."""
        domain, rows = self.program.domain, self.program.reduced
        kept = [Axis(dim, size) for dim, size in enumerate(domain) if dim not in rows]
        return list(boxes(kept, 1, 0, (), most))

    def run(
        self, body: Callable[[Region, Position], None], boxes: Iterable[Region] | None = None
    ) -> None:
        """`body` for each of some boxes, or of all the domain, within the box's loops."""
        for region in self.regions() if boxes is None else boxes:
            start = origin(len(self.program.domain), region.base)
            nest(self.builder, region.loops, start, partial(body, region))

    def hbm(
        self,
        number: int,
        axes: Sequence[Axis],
        position: Position,
        sizes: Sequence[int] = (),
        strides: Sequence[int] = (),
    ) -> Access:
        """The elements of a value along `axes`, then along dimensions that are not swept."""
        source = self.program.inputs[number]
        return walk(
            self.values[number].view.buffer,
            element(source.offset, position, source.strides),
            [*(axis.size for axis in axes), *sizes],
            [*(source.strides[axis.dim] * axis.step for axis in axes), *strides],
        )

    def load(self, number: int, region: Region, free: Sequence[Axis], position: Position) -> Access:
        """A tile with the elements of a value."""
        axes = [*region.partitions, *free]
        src = self.hbm(number, axes, position)
        slot = turn(position)
        dst = self.tile(region, [axis.size for axis in free], src.element_type, slot)
        self.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def store(
        self,
        number: int,
        region: Region,
        free: Sequence[Axis],
        position: Position,
        tile: Access,
    ) -> None:
        """The elements of a tile go where the value lies."""
        dst = self.hbm(number, [*region.partitions, *free], position)
        self.builder.emit(DmaCopy(dst=dst, src=tile))

    def tile(
        self, region: Region, sizes: Sequence[int], dtype: ElementType, slot: Affine = ZERO
    ) -> Access:
        """A new tile, dense."""
        return tile(self.builder, lanes(region), sizes, dtype, slot)


def lanes(region: Region) -> int:
    """Partitions that a region uses."""
    return math.prod(axis.size for axis in region.partitions)


def turn(position: Position) -> Affine:
    """What decides which of two tiles is used: the loop variables."""
    variables = sorted({name for at in position.values() for name in at.variables})
    return Affine(0, tuple((name, 1) for name in variables))


def tile(
    builder: KernelBuilder,
    partitions: int,
    sizes: Sequence[int],
    dtype: ElementType,
    slot: Affine = ZERO,
) -> Access:
    """A new dense tile; two of them in turn if `slot` varies."""
    buffer = builder.tile((partitions, *sizes), dtype, slots=1 if slot == ZERO else 2)
    return tile_access(buffer, sizes, dense_strides(sizes), slot=slot)
