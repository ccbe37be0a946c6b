"""The domain of a chain in boxes that need no masks: loops, partitions, free elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from neuronjax.lower.chain.tile_program import Input, Node, TileProgram
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import storage_of
from neuronjax.machine.specs import ACCESS_DIMS, PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of

MAX_FREE_AXES = ACCESS_DIMS - 1
"""Free axes of tiles; instructions that take part of a tile need one more."""

_Varying = TypeVar("_Varying", Input, Node)


@dataclass(frozen=True, slots=True)
class Axis:
    """A part of a dimension: `size` steps of `step` of its indices."""

    dim: int
    size: int
    step: int = 1

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """The dimension, and how many of its indices a step goes on."""
        return ((self.dim, self.step),)


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


def regions(
    program: TileProgram, tuning: Tuning, *, rows_fit: bool = True, rows_whole: bool = False
) -> list[Region]:
    """The domain in boxes; the reduced dimensions of each whole, or in chunks if they are long.

    Rows that are to be `rows_whole` fit, as who asks for them knows.
    """
    whole = [Axis(dim, program.domain[dim]) for dim in sorted(program.reduced)]
    row = math.prod(axis.size for axis in whole)
    fits = rows_fit and is_resident(row, _row_bytes(program, tuning), tuning)
    cut: tuple[Chunk, ...]
    if rows_whole or (fits and len(whole) < MAX_FREE_AXES):
        cut = (Chunk((), tuple(whole)),)
    else:
        cut = tuple(pieces(whole, (), tuning.tile_elements))
        row = max(math.prod(axis.size for axis in chunk.free) for chunk in cut)
    kept = [Axis(d, size) for d, size in enumerate(program.domain) if d not in program.reduced]
    is_shared = row < tuning.single_row or not whole
    room = max(1, _free_elements(program, tuning) // row) if is_shared else 1
    free_axes = MAX_FREE_AXES - max(len(chunk.free) for chunk in cut)
    return [replace(box, chunks=cut) for box in boxes(kept, room, free_axes, ())]


def _free_elements(program: TileProgram, tuning: Tuning) -> int:
    """Elements of a tile in one partition: fewer where many are held at once, or few needed."""
    stored = [storage_of(program.dtype_of(output.value)).dtype for output in program.outputs]
    loaded = sum(_loaded_bytes(source, tuning) for source in program.inputs)
    held = (loaded + sum(map(bytes_of, stored))) * tuning.chain_slots + tuning.held_bytes
    tiles = PARTITIONS * tuning.tiles_in_turn
    part = max(tuning.tile_part, math.prod(program.domain) // tiles)
    return max(INSTRUCTION_CYCLES, min(tuning.tile_elements, tuning.row_bytes // held, part))


def _loaded_bytes(source: Input, tuning: Tuning) -> int:
    """Bytes in SBUF for each element of a row, with those that lie between."""
    return bytes_of(storage_of(source.dtype).dtype) * (1 + source.spread(tuning.close_elements))


def is_resident(elements: int, nbytes: int, tuning: Tuning) -> bool:
    """Whether rows of so many elements, with tiles of so many bytes per element, fit at once."""
    return elements * nbytes <= tuning.row_bytes


def _row_bytes(program: TileProgram, tuning: Tuning) -> int:
    """Bytes per element of all tensors of a chain; tiles of the dead are used again, so at most
    a few of its values count, but all that is loaded."""

    def reduced(values: Sequence[_Varying]) -> list[_Varying]:
        return [value for value in values if value.axes & program.reduced]

    loaded = [_loaded_bytes(source, tuning) for source in reduced(program.inputs)]
    made = [bytes_of(storage_of(node.dtype).dtype) for node in reduced(program.nodes)]
    most = sorted((*loaded, *made))[-6:]
    return max(4, sum(most), tuning.chain_slots * sum(loaded))


def pieces(axes: list[Axis], base: tuple[tuple[int, int], ...], most: int) -> Iterator[Chunk]:
    """Reduced axes with at most `most` elements at once, remainders as chunks of their own."""
    free: list[Axis] = []
    size = 1
    for index in reversed(range(len(axes))):
        axis = axes[index]
        room = most // size
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
            yield from pieces(tail, (*base, (axis.dim, main * axis.step)), most)
        return
    yield Chunk((), tuple(free), base)


def boxes(
    kept: Sequence[Axis],
    room: int,
    free_axes: int,
    base: tuple[tuple[int, int], ...],
    most: int = PARTITIONS,
) -> Iterator[Region]:
    """Boxes over the kept dimensions: innermost ones free while others fill `most` partitions."""
    rest = list(kept)
    free: list[Axis] = []
    while rest and len(free) < free_axes and room > 1:
        axis = rest[-1]
        others = math.prod(axis.size for axis in rest[:-1])
        if axis.size <= room and others >= min(most, axis.size):
            free.insert(0, rest.pop())
            room //= axis.size
            continue
        part = min(room, max(1, axis.size * others // most), axis.size)
        part = _good_part(axis.size, part)
        if part > 1:
            yield from _tail(rest, free, part, room, free_axes, base, axis, most)
            main = axis.size // part
            rest[-1] = Axis(axis.dim, main, axis.step * part)
            free.insert(0, Axis(axis.dim, part, axis.step))
        break
    rest = [axis for axis in rest if axis.size > 1]
    partitions: list[Axis] = []
    count = 1
    while rest:
        axis = rest[-1]
        if count * axis.size <= most:
            partitions.insert(0, rest.pop())
            count *= axis.size
            continue
        part = most // count
        if part > 1:
            if axis.size % part:
                tail = Axis(axis.dim, axis.size % part, axis.step)
                start = (axis.dim, (axis.size - axis.size % part) * axis.step)
                yield from _partition_boxes(
                    [*rest[:-1], tail, *partitions], free, (*base, start), most
                )
            rest[-1] = Axis(axis.dim, axis.size // part, axis.step * part)
            partitions.insert(0, Axis(axis.dim, part, axis.step))
        break
    yield Region(tuple(a for a in rest if a.size > 1), tuple(partitions), tuple(free), base, ())


def greatest_divisor(number: int, most: int) -> int:
    """The greatest divisor of a number up to `most`; 1 if that is less."""
    return max((n for n in range(1, most + 1) if number % n == 0), default=1)


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
    most: int,
) -> Iterator[Region]:
    left = axis.size % part
    if left:
        tail = Axis(axis.dim, left, axis.step)
        start = (axis.dim, (axis.size - left) * axis.step)
        yield from boxes([*rest[:-1], tail, *free], room, free_axes, (*base, start), most)


def _partition_boxes(
    rest: list[Axis], free: list[Axis], base: tuple[tuple[int, int], ...], most: int
) -> Iterator[Region]:
    for region in boxes(rest, 1, 0, base, most):
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
