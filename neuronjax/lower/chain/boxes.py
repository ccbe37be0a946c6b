"""The domain of a chain in boxes that need no masks: loops, partitions, free elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from neuronjax.lower.chain.tile_program import Input, Node, TileProgram
from neuronjax.lower.values.storage import storage_of
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of

FREE_ELEMENTS = 2048
"""Elements of a tile in one partition, where nothing asks for more."""
MIN_FREE_ELEMENTS = 64
LEAST_TILES = 4
"""Tiles of a chain, if they are not small: one is loaded and one stored while engines work."""
LEAST_PART = 256
"""Elements in one partition from which a tile is not small."""
LONG_ROW = 256
"""Elements of a reduced row from which on a partition has one at a time: its sums are scalars."""
SLOTS = 2
"""Tiles of a value that is loaded or stored in a loop."""
HELD_BYTES = 24
"""Bytes per element of values between: those of the dead make room for others."""
ROW_BYTES = 150 * 1024
"""Bytes of a partition that the tiles of a chain over whole rows may take."""
MAX_FREE_AXES = 3


_Varying = TypeVar("_Varying", Input, Node)


@dataclass(frozen=True, slots=True)
class Axis:
    """A part of a dimension: `size` steps of `step` of its indices."""

    dim: int
    size: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Reduced dimensions in pieces: loops around free axes, from `base` on."""

    loops: tuple[Axis, ...]
    free: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """A box of the domain: loops around partitions around free axes, from `base` on."""

    loops: tuple[Axis, ...]
    partitions: tuple[Axis, ...]
    free: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...]
    chunks: tuple[Chunk, ...]


def regions(program: TileProgram, *, rows_fit: bool = True) -> list[Region]:
    """The domain in boxes; the reduced dimensions of each whole, or in chunks if they are long."""
    whole = [Axis(dim, program.domain[dim]) for dim in sorted(program.reduced)]
    row = math.prod(axis.size for axis in whole)
    resident = len(whole) < MAX_FREE_AXES and is_resident(row, _row_bytes(program)) and rows_fit
    cut: tuple[Chunk, ...]
    if resident:
        cut = (Chunk((), tuple(whole)),)
    else:
        cut = tuple(pieces(whole, ()))
        row = max(math.prod(axis.size for axis in chunk.free) for chunk in cut)
    kept = [Axis(d, size) for d, size in enumerate(program.domain) if d not in program.reduced]
    room = max(1, _free_elements(program) // row) if row < LONG_ROW or not whole else 1
    free_axes = MAX_FREE_AXES - max(len(chunk.free) for chunk in cut)
    return [replace(box, chunks=cut) for box in boxes(kept, room, free_axes, ())]


def _free_elements(program: TileProgram) -> int:
    """Elements of a tile in one partition: fewer where many are held at once, or few needed."""
    stored = [storage_of(program.dtype_of(output.value)).dtype for output in program.outputs]
    held = (sum(map(_loaded_bytes, program.inputs)) + sum(map(bytes_of, stored))) * SLOTS
    held += HELD_BYTES
    part = max(LEAST_PART, math.prod(program.domain) // (PARTITIONS * LEAST_TILES))
    return max(MIN_FREE_ELEMENTS, min(FREE_ELEMENTS, ROW_BYTES // held, part))


def _loaded_bytes(source: Input) -> int:
    """Bytes in SBUF for each element of a row, with those that lie between."""
    return bytes_of(storage_of(source.dtype).dtype) * (1 + source.spread)


def is_resident(elements: int, nbytes: int) -> bool:
    """Whether rows of so many elements, with tiles of so many bytes per element, fit at once."""
    return elements * nbytes <= ROW_BYTES


def _row_bytes(program: TileProgram) -> int:
    """Bytes per element of all tensors of a chain; tiles of the dead are used again, so at most
    a few of its values count, but all that is loaded."""

    def reduced(values: Sequence[_Varying]) -> list[_Varying]:
        return [value for value in values if value.axes & program.reduced]

    loaded = list(map(_loaded_bytes, reduced(program.inputs)))
    made = [bytes_of(storage_of(node.dtype).dtype) for node in reduced(program.nodes)]
    most = sorted((*loaded, *made))[-6:]
    return max(4, sum(most), SLOTS * sum(loaded))


def pieces(axes: list[Axis], base: tuple[tuple[int, int], ...]) -> Iterator[Chunk]:
    """Reduced axes with at most `FREE_ELEMENTS` at once, remainders as chunks of their own."""
    free: list[Axis] = []
    size = 1
    for index in reversed(range(len(axes))):
        axis = axes[index]
        room = FREE_ELEMENTS // size
        if axis.size <= room and len(free) < MAX_FREE_AXES - 1:
            free.insert(0, axis)
            size *= axis.size
            continue
        part = min(room, axis.size) if len(free) < MAX_FREE_AXES - 1 else 1
        main = axis.size - axis.size % part
        inner = [Axis(axis.dim, part, axis.step)] if part > 1 else []
        outer = [Axis(axis.dim, main // part, axis.step * part)]
        yield Chunk((*axes[:index], *outer), (*inner, *free), base)
        if axis.size % part:
            tail = [*axes[:index], Axis(axis.dim, axis.size % part, axis.step), *axes[index + 1 :]]
            yield from pieces(tail, (*base, (axis.dim, main * axis.step)))
        return
    yield Chunk((), tuple(free), base)


def boxes(
    kept: Sequence[Axis], room: int, free_axes: int, base: tuple[tuple[int, int], ...]
) -> Iterator[Region]:
    """Boxes over the kept dimensions: innermost ones free while others fill the partitions."""
    rest = list(kept)
    free: list[Axis] = []
    while rest and len(free) < free_axes and room > 1:
        axis = rest[-1]
        others = math.prod(axis.size for axis in rest[:-1])
        if axis.size <= room and others >= min(PARTITIONS, axis.size):
            free.insert(0, rest.pop())
            room //= axis.size
            continue
        part = min(room, max(1, axis.size * others // PARTITIONS), axis.size)
        part = _good_part(axis.size, part)
        if part > 1:
            yield from _tail(rest, free, part, room, free_axes, base, axis)
            main = axis.size // part
            rest[-1] = Axis(axis.dim, main, axis.step * part)
            free.insert(0, Axis(axis.dim, part, axis.step))
        break
    rest = [axis for axis in rest if axis.size > 1]
    partitions: list[Axis] = []
    count = 1
    while rest:
        axis = rest[-1]
        if count * axis.size <= PARTITIONS:
            partitions.insert(0, rest.pop())
            count *= axis.size
            continue
        part = PARTITIONS // count
        if part > 1:
            if axis.size % part:
                tail = Axis(axis.dim, axis.size % part, axis.step)
                start = (axis.dim, (axis.size - axis.size % part) * axis.step)
                yield from _partition_boxes([*rest[:-1], tail, *partitions], free, (*base, start))
            rest[-1] = Axis(axis.dim, axis.size // part, axis.step * part)
            partitions.insert(0, Axis(axis.dim, part, axis.step))
        break
    yield Region(tuple(a for a in rest if a.size > 1), tuple(partitions), tuple(free), base, ())


def _good_part(size: int, most: int) -> int:
    """A divisor near `most` if there is one, so that nothing remains."""
    for part in range(most, max(1, most // 2), -1):
        if size % part == 0:
            return part
    return most


def _tail(
    rest: list[Axis],
    free: list[Axis],
    part: int,
    room: int,
    free_axes: int,
    base: tuple[tuple[int, int], ...],
    axis: Axis,
) -> Iterator[Region]:
    left = axis.size % part
    if left:
        tail = Axis(axis.dim, left, axis.step)
        start = (axis.dim, (axis.size - left) * axis.step)
        yield from boxes([*rest[:-1], tail, *free], room, free_axes, (*base, start))


def _partition_boxes(
    rest: list[Axis], free: list[Axis], base: tuple[tuple[int, int], ...]
) -> Iterator[Region]:
    for region in boxes(rest, 1, 0, base):
        yield replace(region, free=tuple(free))


@dataclass(frozen=True)
class Box:
    """Partitions and free axes of tiles, and where the box begins in each dimension."""

    partitions: tuple[Axis, ...]
    free: tuple[Axis, ...]
    position: Mapping[int, Affine]

    @property
    def count(self) -> int:
        """Partitions used."""
        return math.prod(axis.size for axis in self.partitions)


def size_of(axes: Sequence[Axis]) -> int:
    """Elements of all axes."""
    return math.prod(axis.size for axis in axes)
