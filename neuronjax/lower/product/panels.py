"""Parts of a product's operands in SBUF, with contracted dimensions on partitions.

A panel holds the box of an operand's memory that some dimensions of the product reach. Several
dimensions may run along the same memory: the positions and the taps of a window overlap, and lie
once in the panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neuronjax.lower.chain.boxes import Axis
from neuronjax.lower.chain.positions import Position, element
from neuronjax.lower.values.view import View, walk
from neuronjax.lower.write.builder import tile_access
from neuronjax.program.affine import ZERO, Affine, affine
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer, Dim, RegisterOffset


@dataclass(frozen=True, slots=True)
class Block:
    """Part of some dimensions: loops around the axes of a tile, from `base` on."""

    loops: tuple[Axis, ...]
    tile: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        return math.prod(axis.size for axis in self.tile)


def blocks(axes: Sequence[Axis], most: int) -> Iterator[Block]:
    """Axes cut into tiles of at most `most` elements, remainders as blocks of their own."""
    rest = [axis for axis in axes if axis.size > 1]
    tile: list[Axis] = []
    size = 1
    while rest:
        axis = rest[-1]
        if size * axis.size <= most:
            tile.insert(0, rest.pop())
            size *= axis.size
            continue
        part = most // size
        if part > 1:
            left = axis.size % part
            rest[-1] = Axis(axis.dim, axis.size // part, axis.step * part)
            loops = tuple(axis for axis in rest if axis.size > 1)
            yield Block(loops, (Axis(axis.dim, part, axis.step), *tile))
            if left:
                start = (axis.dim, (axis.size - left) * axis.step)
                tail = [*rest[:-1], Axis(axis.dim, left, axis.step), *tile]
                for inner in blocks(tail, most):
                    yield Block(inner.loops, inner.tile, (start, *inner.base))
            return
        break
    yield Block(tuple(rest), tuple(tile))


def tiles(axes: Sequence[Axis], most: int) -> Iterator[tuple[tuple[Axis, ...], dict[int, int]]]:
    """All tiles of at most `most` elements, one by one, each with its distance in indices."""
    for block in blocks(axes, most):
        for step in range(math.prod(axis.size for axis in block.loops)):
            at: dict[int, int] = {}
            for dim, start in block.base:
                at[dim] = at.get(dim, 0) + start
            for axis in reversed(block.loops):
                step, index = divmod(step, axis.size)
                at[axis.dim] = at.get(axis.dim, 0) + index * axis.step
            yield block.tile, at


@dataclass(frozen=True)
class Operand:
    """A side of a product: strides along its dimensions, and the type it is multiplied in.

    `memory` numbers the dimension of the operand's memory that each dimension runs along.
    """

    view: View
    strides: tuple[int, ...]
    memory: tuple[int, ...]
    dtype: ElementType
    #: Where the part of the buffer begins that an index chooses, if a register says so.
    window: RegisterOffset | None = None

    def start(self, position: Position) -> Affine:
        """The element of its buffer at a position."""
        return element(self.view.offset, position, self.strides)

    def address(self, start: Affine) -> Affine | RegisterOffset:
        """An element of its buffer, within the part that an index chooses."""
        window = self.window
        return start if window is None else replace(window, base=window.base + start)

    def access(self, axes: Sequence[Axis], position: Position) -> Access:
        """The elements of `axes`, from `position` on, in HBM."""
        return walk(
            self.view.buffer,
            self.address(self.start(position)),
            [axis.size for axis in axes],
            [self.strides[axis.dim] * axis.step for axis in axes],
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """A free dimension of a panel: `size` steps of `stride` elements in HBM, `pitch` in SBUF."""

    memory: int
    stride: int
    size: int
    pitch: int = 1
    #: Whether only contracted dimensions run along it.
    contracted: bool = False


def extents(
    operand: Operand,
    axes: Sequence[Axis],
    contracted: frozenset[int],
    close: int,
    *,
    turned: bool,
    partitions: Sequence[Axis] = (),
) -> tuple[Extent, ...]:
    """The free dimensions of a panel over `axes`, contracted ones outermost if it is `turned`.

    Transfers take along what lies between elements that are at most `close` from each other.
    """
    groups: dict[int, list[Axis]] = {}
    for axis in axes:
        if axis.size > 1 and operand.strides[axis.dim]:
            groups.setdefault(operand.memory[axis.dim], []).append(axis)
    strides = [
        (operand.memory[axis.dim], abs(operand.strides[axis.dim] * axis.step))
        for axis in (*partitions, *axes)
        if axis.size > 1
    ]
    unplaced = [
        _extent(
            operand,
            memory,
            group,
            contracted,
            close,
            [stride for other, stride in strides if other != memory],
        )
        for memory, group in groups.items()
    ]
    unplaced.sort(key=lambda extent: (not extent.contracted if turned else 0, -abs(extent.stride)))
    pitch = 1
    placed: list[Extent] = []
    for extent in reversed(unplaced):
        placed.insert(
            0, Extent(extent.memory, extent.stride, extent.size, pitch, extent.contracted)
        )
        pitch *= extent.size
    return tuple(placed)


def _extent(
    operand: Operand,
    memory: int,
    axes: Sequence[Axis],
    contracted: frozenset[int],
    close: int,
    others: Sequence[int],
) -> Extent:
    """The extent of all `axes` along one dimension of memory; `others` are strides along others."""
    strides = [operand.strides[axis.dim] * axis.step for axis in axes]
    unit = math.gcd(*strides)
    # What lies between, and is no part of the panel by itself, is loaded as well: long runs.
    if unit <= close and not any(0 < stride < unit for stride in others):
        unit = 1
    unit *= 1 if strides[0] > 0 else -1
    size = 1 + sum((axis.size - 1) * s // unit for axis, s in zip(axes, strides, strict=True))
    return Extent(memory, unit, size, contracted=all(axis.dim in contracted for axis in axes))


@dataclass(frozen=True)
class Panel:
    """A tile in SBUF: `partitions` axes of the operand, and the box of its free dimensions."""

    operand: Operand
    buffer: Buffer
    partitions: tuple[Axis, ...]
    extents: tuple[Extent, ...]
    #: Where it begins.
    position: Position
    slot: Affine = ZERO

    def _pitch(self, dim: int) -> tuple[int, int]:
        """Elements of the panel per index of a dimension, as a fraction."""
        for extent in self.extents:
            if extent.memory == self.operand.memory[dim]:
                return extent.pitch * self.operand.strides[dim], extent.stride
        return 0, 1

    def offset(self, position: Position) -> Affine:
        """The element of a partition at a position of the product."""
        total = ZERO
        for dim, at in position.items():
            over, under = self._pitch(dim)
            if over and self.operand.strides[dim]:
                total = total + scaled(at + self.position[dim] * -1, over, under)
        return total

    def access(self, axes: Sequence[Axis], position: Position, pair: Axis | None = None) -> Access:
        """The elements of free `axes`, from `position` on; those of the two places of `pair`, a
        contracted axis, in front of them if there is one."""
        strides = []
        for axis in axes:
            over, under = self._pitch(axis.dim)
            strides.append(over * axis.step // under if self.operand.strides[axis.dim] else 0)
        seen = tile_access(
            self.buffer,
            [axis.size for axis in axes],
            strides,
            offset=self.offset(position),
            slot=self.slot,
        )
        if pair is None:
            return seen
        over, under = self._pitch(pair.dim)
        return replace(seen, dims=(Dim(over * pair.step // under, pair.size), *seen.dims))

    def part(self, sub: Sequence[Extent], position: Position) -> Access:
        """A box of it, from `position` on."""
        pitches = {extent.memory: extent.pitch for extent in self.extents}
        return tile_access(
            self.buffer,
            [extent.size for extent in sub],
            [pitches[extent.memory] for extent in sub],
            offset=self.offset(position),
            slot=self.slot,
        )

    def within(self, axes: Sequence[Axis]) -> tuple[Extent, ...]:
        """The box over some of its axes, in the panel's steps and order."""
        box = []
        for extent in self.extents:
            size = 1
            for axis in axes:
                if self.operand.memory[axis.dim] == extent.memory:
                    stride = self.operand.strides[axis.dim] * axis.step
                    size += (axis.size - 1) * stride // extent.stride
            box.append(Extent(extent.memory, extent.stride, size, extent.pitch, extent.contracted))
        return tuple(box)


def scaled(value: Affine, over: int, under: int) -> Affine:
    """value * over / under, which is integer."""
    terms = {name: factor * over // under for name, factor in value.terms}
    return affine(value.base * over // under, **terms)
