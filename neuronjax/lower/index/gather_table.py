"""Windows of a tensor that index vectors name, as rows of a table: what gather and scatter share.

Rows of the table begin a fixed number of elements apart, one row for every start that an index
vector may have; from there on the other dimensions of the table walk over the window. Index vectors
are taken 128 at a time, one on each partition, and their row numbers computed in exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, dense_strides
from neuronjax.lower.write.builder import KernelBuilder, room_of
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, ElementType, bytes_of
from neuronjax.program.gpsimd_engine import CustomOp, Iota
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import CustomFunction
from neuronjax.program.vector_engine import Memset

INT32, UINT32, UINT8 = INTEGERS["int32"], INTEGERS["uint32"], INTEGERS["uint8"]


@dataclass(frozen=True, slots=True)
class Component:
    """A number of an index vector: the greatest allowed, and rows from one to the next."""

    column: int
    limit: int
    step: int


@dataclass(frozen=True, slots=True)
class Batching:
    """A dimension that indices and operand share: (vector // every) % size counts `step` rows."""

    every: int
    size: int
    step: int


@dataclass(frozen=True, slots=True)
class GatherTable:
    """An operand as a table: `rows` of `window` elements, each `apart` elements from the last."""

    #: Shape of the index vectors.
    shape: tuple[int, ...]
    components: tuple[Component, ...]
    batching: tuple[Batching, ...]
    apart: int
    rows: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def vectors(self) -> int:
        """Number of index vectors."""
        return math.prod(self.shape)

    @property
    def elements(self) -> int:
        """Elements of a window."""
        return math.prod(self.window)

    @property
    def are_disjoint(self) -> bool:
        """Whether windows of different rows have no element in common."""
        steps = [
            (component.step * self.apart, component.limit + 1) for component in self.components
        ]
        steps += [(axis.step * self.apart, axis.size) for axis in self.batching]
        walk = zip(self.strides, self.window, strict=True)
        reached = 1
        for stride, size in sorted([*walk, *(step for step in steps)]):
            if size == 1:
                continue
            if stride < reached:
                return False
            reached = stride * (size - 1) + reached
        return True


def table_of(
    view: View,
    sizes: Sequence[int],
    indexed: Sequence[int],
    batching: Sequence[tuple[int, int]],
    batch_shape: Sequence[int],
    dtype: np.dtype,
) -> GatherTable:
    """The table that windows of `sizes` make of a view without negative strides.

    Component i of an index vector moves dimension `indexed[i]`; `batching` are pairs of a dimension
    of the view and of `batch_shape`, the shape of the index vectors.
    """
    limits = [(d, view.shape[d] - sizes[d]) for d in indexed]
    shared = [(d, batch_shape[b]) for d, b in batching]
    moving = [view.strides[d] for d, limit in limits if limit and view.strides[d]]
    moving += [view.strides[d] for d, size in shared if size > 1 and view.strides[d]]
    apart = math.gcd(*moving) or 1
    last = sum(view.strides[d] * limit for d, limit in limits)
    last += sum(view.strides[d] * (size - 1) for d, size in shared)
    every = dense_strides(batch_shape)
    return GatherTable(
        shape=tuple(batch_shape),
        components=tuple(
            Component(column, limit, view.strides[d] // apart)
            for column, (d, limit) in enumerate(limits)
        ),
        batching=tuple(
            Batching(every[b], batch_shape[b], view.strides[d] // apart)
            for d, b in batching
            if batch_shape[b] > 1
        ),
        apart=apart,
        rows=last // apart + 1,
        window=tuple(sizes),
        strides=view.strides,
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Index vectors of one kernel loop: `trips` times `columns` of so many `partitions`."""

    trips: int
    columns: int
    partitions: int
    base: int


def batches(vectors: int, columns: int) -> Iterator[Batch]:
    """All index vectors, 128 to a column; what remains comes last."""
    full, rest = divmod(vectors, PARTITIONS)
    trips, left = divmod(full, columns)
    if trips:
        yield Batch(trips, columns, PARTITIONS, 0)
    if left:
        yield Batch(1, left, PARTITIONS, trips * columns * PARTITIONS)
    if rest:
        yield Batch(1, 1, rest, full * PARTITIONS)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a window: loops of (dimension, trips, step), then the sizes that are walked."""

    loops: tuple[tuple[int, int, int], ...]
    sizes: tuple[int, ...]
    base: tuple[tuple[int, int], ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


def parts(window: Sequence[int], most: int) -> Iterator[Part]:
    """A window in parts of at most `most` elements; remainders are parts of their own."""
    sizes = list(window)
    count = 1
    for d in reversed(range(len(sizes))):
        if count * sizes[d] <= most:
            count *= sizes[d]
            continue
        size = _step(sizes[d], max(1, most // count))
        loops = [(d, sizes[d] // size, size)] + [(o, sizes[o], 1) for o in range(d)]
        inner = tuple(1 if o < d else size if o == d else n for o, n in enumerate(sizes))
        yield Part(tuple(loop for loop in reversed(loops) if loop[1] > 1), inner)
        left = sizes[d] % size
        if left:
            tail = [*sizes[:d], left, *sizes[d + 1 :]]
            for part in parts(tail, most):
                yield replace(part, base=(*part.base, (d, sizes[d] - left)))
        return
    yield Part((), tuple(sizes))


def _step(size: int, most: int) -> int:
    """How far to go at once along `size`: equal steps if they are not many more, or half of `most`,
    since a remainder takes room besides."""
    fewest = -(-size // most)
    for pieces in range(fewest, 2 * fewest + 1):
        if size % pieces == 0:
            return size // pieces
    return max(1, most // 2)


@contextmanager
def walked(builder: KernelBuilder, part: Part) -> Iterator[dict[int, Affine]]:
    """The loops of a part; yields where in the window it begins."""
    at = dict.fromkeys(range(len(part.sizes)), ZERO)
    for d, start in part.base:
        at[d] = at[d] + start
    with ExitStack() as stack:
        for d, trips, step in part.loops:
            variable = stack.enter_context(builder.loop(trips))
            at[d] = at[d] + variable * step
        yield at


def offset_of(at: dict[int, Affine], strides: Sequence[int]) -> Affine:
    """The offset of a position in a window."""
    total = ZERO
    for d, position in at.items():
        total = total + position * strides[d]
    return total


def most_elements(builder: KernelBuilder, dtype: ElementType, tiles: int) -> int:
    """Elements of a window that lie on a partition at once, in each of so many tiles."""
    room = room_of(builder.core, builder.tuning)
    return min(builder.tuning.window_bytes, room // tiles) // bytes_of(dtype)


def rows_access(view: View, table: GatherTable, part: Part, at: dict[int, Affine]) -> Access:
    """The part of all windows of a table, its rows first."""
    pairs = zip(table.strides, part.sizes, strict=True)
    inner = tuple(Dim(stride, size) for stride, size in pairs if size > 1)
    return Access(
        buffer=view.buffer,
        offset=offset_of(at, table.strides) + view.offset,
        dims=(Dim(table.apart, table.rows), *inner),
    )


def slot_of(*values: Affine) -> Affine:
    """Two tiles take turns as the loops about them go on."""
    return Affine(0, tuple((name, 1) for name in sorted({n for v in values for n in v.variables})))


@dataclass
class Starts:
    """Computes the rows that index vectors name, for one batch at a time.

    `index` holds them as [vectors, components]. With `checks`, vectors that lead outside get a row
    that there is not; else they are clamped.
    """

    builder: KernelBuilder
    table: GatherTable
    index: View
    checks: bool = False

    def emit(self, batch: Batch, base: Affine) -> Buffer:
        """A tile of row numbers [partitions, columns] for the vectors from `base` on."""
        shape = (batch.partitions, batch.columns)
        loaded = self._loaded(batch, base)
        total: Access | None = None
        valid: Access | None = None
        for component in self.table.components:
            raw = replace(loaded, offset=Affine(component.column))
            raw = replace(raw, dims=(Dim(len(self.table.components), batch.columns),))
            inside = self._clamped(raw, component.limit)
            if self.checks:
                same = self._tile(shape, UINT8)
                self._custom(same, CustomFunction.COMPARE_EQ, inside, raw)
                valid = self._both(valid, same)
            if component.limit and component.step:
                total = self._plus(total, self._scaled(inside, component.step))
        for shared in self.table.batching:
            if shared.step:
                total = self._plus(total, self._shared(shared, batch, base))
        if total is None:
            total = self._tile(shape, INT32)
            self.builder.emit(Memset(dst=total, value=Immediate(0)))
        if valid is not None:
            chosen = self._tile(shape, INT32)
            self._custom(
                chosen, CustomFunction.SELECT, valid, total, Immediate(self.table.rows)
            )  # fmt: skip
            total = chosen
        return total.buffer

    def column(self, rows: Buffer, column: Affine) -> Access:
        """A column of row numbers, as transfers take them."""
        return Access(
            buffer=rows, partitions=rows.partitions, offset=column, dims=(Dim(1, 1),), dtype=UINT32
        )

    def _loaded(self, batch: Batch, base: Affine) -> Access:
        stored = storage_of(self.table.dtype).dtype
        count = len(self.table.components)
        if not count:
            return self._tile((batch.partitions, batch.columns), stored)
        stride, step = self.index.strides
        dst = self._tile((batch.partitions, batch.columns * count), stored)
        dims = [
            Dim(stride, batch.partitions), Dim(stride * PARTITIONS, batch.columns),
            Dim(step, count),
        ]  # fmt: skip
        src = Access(
            buffer=self.index.buffer,
            offset=base * stride + self.index.offset,
            dims=tuple(dim for dim in dims if dim.size > 1) or (Dim(1, 1),),
        )
        self.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def _clamped(self, raw: Access, limit: int) -> Access:
        """Numbers between 0 and `limit`, in their own type."""
        stored = raw.element_type
        least, most = np.iinfo(stored.name).min, np.iinfo(stored.name).max
        if least < 0:
            positive = self._tile((raw.partitions, raw.free_elements), stored)
            self._custom(positive, CustomFunction.MAXIMUM, raw, Immediate(0))
            raw = positive
        if limit >= most:
            return raw
        inside = self._tile((raw.partitions, raw.free_elements), stored)
        self._custom(inside, CustomFunction.MINIMUM, raw, Immediate(limit))
        return inside

    def _scaled(self, number: Access, step: int) -> Access:
        wide = number
        if number.element_type is not INT32:
            wide = self._tile((number.partitions, number.free_elements), INT32)
            self._custom(wide, CustomFunction.CONVERT, number)
        if step == 1:
            return wide
        scaled = self._tile((number.partitions, number.free_elements), INT32)
        self._custom(scaled, CustomFunction.MULTIPLY, wide, Immediate(step))
        return scaled

    def _shared(self, shared: Batching, batch: Batch, base: Affine) -> Access:
        shape = (batch.partitions, batch.columns)
        number, place, own = (self._tile(shape, INT32) for _ in range(3))
        pattern = (Dim(PARTITIONS, batch.columns),)
        self.builder.emit(Iota(dst=number, pattern=pattern, offset=base, channel_multiplier=1))
        self._custom(place, CustomFunction.DIVIDE, number, Immediate(shared.every))
        self._custom(own, CustomFunction.REMAINDER, place, Immediate(shared.size))
        return self._scaled(own, shared.step)

    def _plus(self, access: Access | None, other: Access) -> Access:
        return self._joined(access, other, CustomFunction.ADD)

    def _both(self, access: Access | None, other: Access) -> Access:
        return self._joined(access, other, CustomFunction.AND)

    def _joined(self, access: Access | None, other: Access, function: CustomFunction) -> Access:
        if access is None:
            return other
        joined = self._tile((other.partitions, other.free_elements), other.element_type)
        self._custom(joined, function, access, other)
        return joined

    def _custom(self, dst: Access, function: CustomFunction, *srcs: Access | Immediate) -> None:
        self.builder.emit(CustomOp(dst=dst, function=function, srcs=srcs))

    def _tile(self, shape: tuple[int, int], dtype: ElementType) -> Access:
        buffer = self.builder.tile(shape, dtype, name="rows")
        return Access(buffer=buffer, partitions=shape[0], dims=(Dim(1, shape[1]),))
