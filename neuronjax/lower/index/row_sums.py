"""Adding windows of updates to rows of a table, 128 index vectors at a time.

A matrix says which vectors name the same row. Times the updates, it gives each of them the sum of
all updates of its row, and the first one of each row carries it to the table. Zeros times infinity
or NaN would spread to other rows: where there are any, vectors go one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.lower.index import gather_table
from neuronjax.lower.index.gather_table import (
    INT32,
    UINT8,
    UINT32,
    Batch,
    GatherTable,
    Part,
    Starts,
)
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS, Engine
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.control import RegisterLoad
from neuronjax.program.dma import DmaCopy, DmaScatter
from neuronjax.program.element_types import ElementType
from neuronjax.program.gpsimd_engine import AffineSelect, CustomOp, Iota, PartitionReduce
from neuronjax.program.operand import Access, Buffer, Dim, Immediate, Memory, Register
from neuronjax.program.operators import AluOp, CustomFunction, OutOfBounds, PartitionReduction
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import (
    Memset,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorScalarReduce,
    TensorTensor,
)


def tile(
    builder: KernelBuilder,
    shape: tuple[int, int],
    dtype: ElementType = FLOAT32,
    slot: Affine = ZERO,
) -> Access:
    """A new tile; two that take turns if `slot` says so."""
    buffer = builder.tile(shape, dtype, slots=2 if slot.terms else 1, name="s")
    return Access(buffer=buffer, partitions=shape[0], dims=(Dim(1, shape[1]),), slot=slot)


def loaded(
    builder: KernelBuilder,
    view: View,
    batch: Batch,
    part: Part,
    first: Affine,
    at: dict[int, Affine],
) -> Access:
    """A part of the windows of one column of vectors, one window on each partition."""
    step, *strides = view.strides
    slot = gather_table.slot_of(first, *at.values())
    news = tile(builder, (batch.partitions, part.elements), view.buffer.dtype, slot)
    start = first * step + gather_table.offset_of(at, strides) + view.offset
    sizes = (batch.partitions, *part.sizes)
    builder.emit(DmaCopy(dst=news, src=walk(view.buffer, start, sizes, view.strides)))
    return news


def turned(builder: KernelBuilder, buffer: Buffer, batch: Batch, scratch: Buffer) -> None:
    """Row numbers [partitions, columns] to memory, one column after the other."""
    shape = (batch.partitions, batch.columns)
    src = Access(buffer=buffer, partitions=shape[0], dims=(Dim(1, shape[1]),), dtype=UINT32)
    builder.emit(DmaCopy(dst=walk(scratch, ZERO, shape, (1, shape[0])), src=src))


def equal(
    builder: KernelBuilder,
    scratch: Buffer,
    where: Access,
    column: Affine,
    dtype: ElementType = FLOAT32,
) -> Access:
    """1 where the vectors of a partition and of an element name the same row, else 0."""
    count = where.partitions
    slot = gather_table.slot_of(column)
    other, same = (tile(builder, (count, count), kind, slot) for kind in (UINT32, dtype))
    builder.emit(DmaCopy(dst=other, src=walk(scratch, column * count, (count, count), (0, 1))))
    spread = replace(where, dims=(Dim(0, count),), dtype=UINT32)
    builder.emit(
        TensorTensor(dst=same, data1=other, data2=spread, op=AluOp.EQUAL, engine=Engine.GPSIMD)
    )
    return same


def ranks(builder: KernelBuilder, same: Access) -> Access:
    """The number of vectors before each one that name the same row."""
    count = same.partitions
    before, rank = tile(builder, (count, count)), tile(builder, (count, 1))
    builder.emit(
        AffineSelect(
            dst=before, pattern=(Dim(-1, count),), channel_multiplier=1, on_true=same,
            on_false=Immediate(0.0), cmp_op=AluOp.GREATER,
        )
    )  # fmt: skip
    builder.emit(TensorReduce(dst=rank, op=AluOp.ADD, data=before))
    return rank


_Vectors = tuple[Access, Affine, Batch, Affine]
"""Row numbers of some vectors, which column of their batch they are, and the first of them."""


@dataclass
class RowSums:
    """Writes the kernel that adds updates to a target."""

    scope: Scope
    builder: KernelBuilder
    table: GatherTable
    target: View
    updates: View
    index: View
    scratch: Buffer

    def write(self) -> None:
        """Writes the kernel."""
        finite = self._finite()
        with self.builder.block() as at_once:
            self._all(self._at_once, is_turned=True)
        with self.builder.block() as apart:
            self._all(self._apart, is_turned=False)
        self.builder.branch(finite, at_once, apart, is_usual=True)

    def _all(self, body: Callable[[_Vectors], None], *, is_turned: bool) -> None:
        starts = Starts(self.builder, self.table, self.index, checks=True)
        for batch in gather_table.batches(self.table.vectors, self.builder.tuning.index_columns):
            with self.builder.loop(batch.trips) as trip:
                base = trip * (batch.columns * batch.partitions) + batch.base
                row_starts = starts.emit(batch, base)
                if is_turned:
                    turned(self.builder, row_starts, batch, self.scratch)
                with self.builder.loop(batch.columns) as column:
                    first = column * batch.partitions + base
                    body((starts.column(row_starts, column), column, batch, first))

    @functools.cached_property
    def _most(self) -> int:
        """Elements of a window at once: updates and sums have two slots, zeros one.

        Each batch of vectors has its own tiles: one of whole columns, for instance, and the rest.
        """
        vectors = self.table.vectors
        columns = len(list(gather_table.batches(vectors, vectors)))
        some = gather_table.batches(vectors, self.builder.tuning.index_columns)
        tiles = 3 * columns + 6 * len(list(some))
        return gather_table.most_elements(self.builder, self.target.buffer.dtype, tiles)

    def _news(
        self, batch: Batch, first: Affine
    ) -> Iterator[tuple[Part, dict[int, Affine], Access]]:
        """Updates of one column, part by part."""
        for part in gather_table.parts(self.table.window, self._most):
            with gather_table.walked(self.builder, part) as at:
                yield part, at, loaded(self.builder, self.updates, batch, part, first, at)

    # Whether all updates are finite

    def _finite(self) -> Register:
        """A register that is 1 if all updates are finite, else 0."""
        emit = self.builder.emit
        total, odd = (tile(self.builder, (PARTITIONS, 1)) for _ in range(2))
        emit(Memset(dst=total, value=Immediate(0.0)))
        for batch in gather_table.batches(self.table.vectors, self.table.vectors):
            with self.builder.loop(batch.columns) as column:
                first = column * batch.partitions + batch.base
                for _, _, news in self._news(batch, first):
                    self._watch(replace(total, partitions=batch.partitions), news)
        emit(TensorTensor(dst=odd, data1=total, data2=total, op=AluOp.NOT_EQUAL))
        most, all_ = tile(self.builder, (1, 1)), tile(self.builder, (1, 1), INT32)
        emit(PartitionReduce(dst=most, op=PartitionReduction.MAX, data=odd))
        emit(TensorScalar(dst=all_, data=most, op0=AluOp.EQUAL, operand0=Immediate(0.0)))
        register = self.scope.unit.register(1, "finite")
        emit(RegisterLoad(dst=register, src=all_))
        return register

    def _watch(self, total: Access, news: Access) -> None:
        """Zeros times finite numbers are zeros; their sum with anything else is NaN for ever."""
        zeros = tile(self.builder, (news.partitions, news.free_elements), news.element_type)
        is_finite = tile(self.builder, (news.partitions, 1))
        self.builder.emit(
            TensorScalarReduce(
                dst=zeros, data=news, op0=AluOp.MULTIPLY, operand0=Immediate(0.0),
                reduce_op=AluOp.ADD, reduce_res=is_finite,
            )
        )  # fmt: skip
        self.builder.emit(TensorTensor(dst=total, data1=total, data2=is_finite, op=AluOp.ADD))

    # All vectors of a column together

    def _at_once(self, vectors: _Vectors) -> None:
        where, column, batch, first = vectors
        same = equal(self.builder, self.scratch, where, column, self.updates.buffer.dtype)
        rank = ranks(self.builder, same)
        leads, slot = tile(self.builder, (where.partitions, 1), UINT8), gather_table.slot_of(column)
        chosen = tile(self.builder, (where.partitions, 1), UINT32, slot)
        self.builder.emit(
            TensorScalar(dst=leads, data=rank, op0=AluOp.EQUAL, operand0=Immediate(0.0))
        )
        self._select(chosen, leads, where)
        for part, at, news in self._news(batch, first):
            sums = tile(self.builder, (where.partitions, part.elements), FLOAT32, news.slot)
            for index, start in enumerate(range(0, part.elements, MOVING_COLUMNS)):
                size = min(MOVING_COLUMNS, part.elements - start)
                total = self._bank(index, where.partitions, size)
                moving, into = (
                    tile_access(values.buffer, [size], [1], offset=start, slot=values.slot)
                    for values in (news, sums)
                )
                self.builder.emit(Matmul(dst=total, stationary=same, moving=moving))
                self.builder.emit(TensorCopy(dst=into, src=total))
            self._add(sums, chosen, part, at)

    @property
    def _banks(self) -> int:
        """Banks of PSUM that take turns."""
        return self.builder.core.psum.banks // 2

    def _bank(self, index: int, partitions: int, size: int) -> Access:
        slot = Affine(index % self._banks)
        return tile_access(self.ring, [size], [1], partitions=partitions, slot=slot)

    @functools.cached_property
    def ring(self) -> Buffer:
        """Banks of PSUM for sums."""
        shape = (PARTITIONS, MOVING_COLUMNS)
        slots = self._banks
        return self.builder.tile(shape, FLOAT32, Memory.PSUM, slots=slots, name="sum")

    # One vector after the other

    def _apart(self, vectors: _Vectors) -> None:
        where, _, batch, first = vectors
        for part, at, news in self._news(batch, first):
            with self.builder.loop(batch.partitions) as number:
                place = tile(self.builder, (batch.partitions, 1), INT32)
                due = tile(self.builder, (batch.partitions, 1), UINT8)
                chosen = tile(self.builder, (batch.partitions, 1), UINT32)
                self.builder.emit(
                    Iota(dst=place, pattern=(Dim(0, 1),), offset=number * -1, channel_multiplier=1)
                )
                equals = CustomFunction.COMPARE_EQ
                self.builder.emit(CustomOp(dst=due, function=equals, srcs=(place, Immediate(0))))
                self._select(chosen, due, where)
                self._add(news, chosen, part, at)

    def _select(self, chosen: Access, due: Access, where: Access) -> None:
        """Rows of vectors that are due; others lead outside."""
        srcs = (due, where, Immediate(self.table.rows))
        self.builder.emit(CustomOp(dst=chosen, function=CustomFunction.SELECT, srcs=srcs))

    # A queue serves its transfers in order: sums have another than loads, which wait for nothing.
    def _add(self, news: Access, chosen: Access, part: Part, at: dict[int, Affine]) -> None:
        self.builder.emit(
            DmaScatter(
                table=gather_table.rows_access(self.target, self.table, part, at),
                src=news, index=chosen, accumulate=True, out_of_bounds=OutOfBounds.SKIP,
                queue=1,
            )
        )  # fmt: skip
