"""The places of a tensor's elements when the tensor of HBM is kept in SBUF.

Rows of it are on partitions, blocks of as many rows as there are partitions side by side: as tiles
are that are copied from it or to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.program.affine import Affine, affine
from neuronjax.program.operand import Access, Buffer, Dim, Memory, RegisterOffset


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of `width` elements, `lanes` of them beside each other on partitions."""

    buffer: Buffer
    width: int
    lanes: int

    def resident(self, name: str) -> Buffer:
        """A tile that takes the tensor."""
        blocks = -(-self.buffer.elements // (self.width * self.lanes))
        shape = (self.lanes, blocks * self.width)
        return Buffer(name=name, memory=Memory.SBUF, dtype=self.buffer.dtype, shape=shape)

    def access(
        self, old: Access, partitions: int, tile: Buffer, trips: Mapping[str, int]
    ) -> Access | None:
        """An access to HBM that goes to `partitions` of them, as one to the tile.

        Rows are on partitions where they are in the other tile, or else the walk goes through the
        same elements. None: there is no such walk.
        """
        if isinstance(old.offset, RegisterOffset) or not old.variables <= trips.keys():
            return None
        if old.slot.terms or old.dtype is not None:
            return None
        return self._rows(old, partitions, tile, trips) or self._walk(old, tile, trips)

    def _rows(
        self, old: Access, partitions: int, tile: Buffer, trips: Mapping[str, int]
    ) -> Access | None:
        rows = rows_of(old, partitions)
        assert isinstance(old.offset, Affine)
        if rows is None or (partitions > 1 and rows[0] != self.width):
            return None
        inner = rows[1]
        block, lane, column = self._split(old.offset)
        dims = tuple(self._inner(dim) for dim in inner if dim.size > 1)
        if any(dim is None for dim in dims):
            return None
        ends = [dim.stride * (dim.size - 1) for dim in inner if abs(dim.stride) < self.width]
        low = column.interval(trips).low + sum(min(0, end) for end in ends)
        high = column.interval(trips).high + sum(max(0, end) for end in ends)
        lanes = lane.interval(trips)
        if low < 0 or high >= self.width or lanes.low < 0 or lanes.high + partitions > self.lanes:
            return None
        return Access(
            buffer=tile,
            partition=lane,
            partitions=partitions,
            offset=block * self.width + column,
            dims=tuple(dim for dim in dims if dim is not None) or (Dim(1, 1),),
        )

    def _walk(self, old: Access, tile: Buffer, trips: Mapping[str, int]) -> Access | None:
        """Neighbouring elements, over and over perhaps: part of a row, or whole rows."""
        assert isinstance(old.offset, Affine)
        again = tuple(dim for dim in old.dims if not dim.stride and dim.size > 1)
        walk = joined(tuple(dim for dim in old.dims if dim.stride))
        count = walk[0].size if walk else 1
        if len(walk) > 1 or (walk and walk[0].stride != 1) or again != old.dims[: len(again)]:
            return None
        block, lane, column = self._split(old.offset)
        columns, lanes = column.interval(trips), lane.interval(trips)
        rows = -(-count // self.width)
        if columns.low < 0 or lanes.low < 0 or lanes.high + rows > self.lanes:
            return None
        if rows > 1 and (count % self.width or columns.high or again):
            return None
        if rows == 1 and columns.high + count > self.width:
            return None
        return Access(
            buffer=tile,
            partition=lane,
            partitions=rows,
            offset=block * self.width + column,
            dims=(*again, Dim(1, count // rows)),
        )

    def _inner(self, dim: Dim) -> Dim | None:
        """A walk within rows, or from block to block; None: from partition to partition."""
        if abs(dim.stride) < self.width:
            return dim
        whole = self.width * self.lanes
        return None if dim.stride % whole else Dim(dim.stride // self.lanes, dim.size)

    def _split(self, offset: Affine) -> tuple[Affine, Affine, Affine]:
        """Block, partition and column of an offset, as far as loops go through one of them."""
        whole = self.width * self.lanes
        parts: tuple[dict[str, int], ...] = ({}, {}, {})
        for name, factor in offset.terms:
            if not factor % whole:
                parts[0][name] = factor // whole
            elif not factor % self.width:
                parts[1][name] = factor // self.width
            else:
                parts[2][name] = factor
        rest = offset.base % whole
        bases = (offset.base // whole, rest // self.width, rest % self.width)
        block, lane, column = (
            affine(base, **terms) for base, terms in zip(bases, parts, strict=True)
        )
        return block, lane, column


def rows_of(access: Access, partitions: int) -> tuple[int, tuple[Dim, ...]] | None:
    """The stride from partition to partition of an access to HBM, and the walk within each.

    None: its first dimension does not go through partitions alone.
    """
    if partitions == 1:
        return 0, access.dims
    if not access.dims or access.dims[0].size % partitions:
        return None
    first, *rest = access.dims
    size = first.size // partitions
    inner = (Dim(first.stride, size),) if size > 1 else ()
    return first.stride * size, (*inner, *rest)


def translated(access: Access, old: Access, new: Access, trips: Mapping[str, int]) -> Access | None:
    """An access to the tile of `old`, as one to that of `new`, which holds the same in its walk.

    `trips` are those of the loops about it. None: it leaves `old`, or there is no such walk in
    `new`.
    """
    if isinstance(access.offset, RegisterOffset) or isinstance(old.offset, RegisterOffset):
        return None
    if access.slot != old.slot or new.partition != old.partition or access.partition.terms:
        return None
    first, begin = access.partition.base, old.partition.base
    if old.partition.terms or not begin <= first <= begin + old.partitions - access.partitions:
        return None
    walk = _walked(access, old, new, trips)
    if walk is None:
        return None
    return dataclasses.replace(
        access,
        buffer=new.buffer,
        partition=access.partition,
        slot=new.slot,
        offset=walk[0],
        dims=walk[1],
    )


def _walked(
    access: Access, old: Access, new: Access, trips: Mapping[str, int]
) -> tuple[Affine, tuple[Dim, ...]] | None:
    assert isinstance(access.offset, Affine)
    assert isinstance(old.offset, Affine)
    assert isinstance(new.offset, Affine)
    if access.offset == old.offset and joined(access.dims) == joined(old.dims):
        return new.offset, new.dims
    source = joined(old.dims)
    if len(source) > 1 or (source and not source[0].stride):
        return None
    step, count = (source[0].stride, source[0].size) if source else (1, 1)
    distance = access.offset + old.offset * -1
    begin, reach = distance.interval(trips), access.reach
    if begin.low + reach.low < 0 or begin.high + reach.high > (count - 1) * step:
        return None
    levels = _levels(joined(new.dims))
    digits = _digits(distance, step, count, levels)
    if digits is None:
        return None
    offset, places = digits
    dims: list[Dim] = []
    for dim in joined(access.dims):
        inner = _through(dim, step, levels, places)
        if inner is None:
            return None
        dims += inner
    return new.offset + offset, tuple(dims) or (Dim(1, 1),)


def joined(dims: tuple[Dim, ...]) -> list[Dim]:
    """A walk's dimensions, joined to as few as possible."""
    joined: list[Dim] = []
    for dim in dims:
        if dim.size == 1:
            continue
        if joined and joined[-1].stride == dim.stride * dim.size:
            joined[-1] = Dim(dim.stride, joined[-1].size * dim.size)
        else:
            joined.append(dim)
    return joined


@dataclass(frozen=True, slots=True)
class _Level:
    """A dimension of a walk: elements of the walk that a step passes, and its stride and size."""

    passed: int
    stride: int
    size: int


def _levels(dims: list[Dim]) -> list[_Level]:
    """The levels from the outermost dimension to the innermost."""
    levels: list[_Level] = []
    passed = 1
    for dim in reversed(dims):
        levels.append(_Level(passed, dim.stride, dim.size))
        passed *= dim.size
    return levels[::-1] or [_Level(1, 1, 1)]


def _digits(
    distance: Affine, step: int, count: int, levels: list[_Level]
) -> tuple[Affine, list[int]] | None:
    """The offset of an element of a walk, and how many steps are left at each level from there."""
    if distance.base % step or not 0 <= distance.base // step < count:
        return None
    rest = distance.base // step
    offset = Affine(0)
    places: list[int] = []
    for level in levels:
        digit, rest = divmod(rest, level.passed)
        offset = offset + digit * level.stride
        places.append(level.size - digit)
    for name, factor in distance.terms:
        if factor % step:
            return None
        passed = factor // step
        outermost = levels[0]
        if passed % outermost.passed:
            return None
        offset = offset + affine(0, **{name: passed // outermost.passed * outermost.stride})
    return offset, places


def _through(dim: Dim, step: int, levels: list[_Level], places: list[int]) -> list[Dim] | None:
    """A dimension of a walk over elements `step` apart, as a walk through levels.

    Takes the places that it goes through from those left at its levels.
    """
    if dim.stride % step or dim.stride < 0:
        return None
    passed = dim.stride // step
    for index, level in enumerate(levels):
        if passed % level.passed:
            continue
        steps = passed // level.passed
        if steps * (dim.size - 1) < places[index]:
            places[index] -= steps * (dim.size - 1)
            return [Dim(steps * level.stride, dim.size)]
        if steps == 1 and places[index] == level.size and index and not dim.size % level.size:
            outer, rows = levels[index - 1], dim.size // level.size
            if rows <= places[index - 1]:
                places[index], places[index - 1] = 1, places[index - 1] - rows + 1
                return [Dim(outer.stride, rows), Dim(level.stride, level.size)]
        return None
    return None
