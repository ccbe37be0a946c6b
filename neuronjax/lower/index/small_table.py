"""`gather` from a table so small that every partition holds it: GpSimd looks elements up there.

A partition takes index vectors that follow each other, so that indices and results move in long
runs. The windows' elements are looked up one after the other, so that results can lie in the order
of index vectors or with the dimensions of windows first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.index.gather_table import INT32, UINT32, Batch, GatherTable
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, dense_strides
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.gpsimd_engine import Gather
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp
from neuronjax.program.vector_engine import ScalarTensorTensor, TensorCopy, TensorScalar


def is_small(
    table: GatherTable, view: View, dtype: ElementType, tuning: Tuning, *, windows_first: bool
) -> bool:
    """Whether every partition can hold the table, and looks up enough in it."""
    reached = _reach(table)
    longest = tuning.held_window * (tuning.held_window_turned if windows_first else 1)
    elements = math.prod(
        size for size, stride in zip(view.shape, view.strides, strict=True) if stride
    )
    return (
        reached == elements <= tuning.held_table
        and table.elements <= longest
        and table.vectors >= max(8 * PARTITIONS, 2 * reached)
        and dtype.storage_bits <= 32
        and not any(axis.step for axis in table.batching)
        and storage_of(table.dtype).dtype.storage_bits <= 32
    )


def _reach(table: GatherTable) -> int:
    """Elements from the first to the last that windows have."""
    walk = zip(table.strides, table.window, strict=True)
    return (table.rows - 1) * table.apart + sum(step * (size - 1) for step, size in walk) + 1


@dataclass
class Lookup:
    """Writes the kernel. With `windows_first`, results lie as [window, index vectors]."""

    builder: KernelBuilder
    table: GatherTable
    source: View
    index: View
    target: Buffer
    windows_first: bool

    def write(self) -> None:
        """All index vectors, whole columns first."""
        held = self._held()
        for batch in self._batches():
            with self.builder.loop(batch.trips) as trip:
                first = trip * (batch.columns * batch.partitions) + batch.base
                self._batch(held, batch, first)

    def _held(self) -> Access:
        size = _reach(self.table)
        held = self._tile(PARTITIONS, (size,), self.target.dtype)
        everywhere = (Dim(0, PARTITIONS), Dim(1, size))
        offset = self.source.offset
        src = Access(buffer=self.source.buffer, offset=offset, dims=everywhere)
        self.builder.emit(DmaCopy(dst=held, src=src))
        return elementwise.as_bits(held)

    def _batches(self) -> Iterator[Batch]:
        """Full partitions with as many columns as a tile holds, then what remains."""
        full, rest = divmod(self.table.vectors, PARTITIONS)
        trips = -(-full * self.table.elements // self.builder.tuning.tile_elements)
        columns = full // trips
        yield Batch(trips, columns, PARTITIONS, 0)
        if full > trips * columns:
            yield Batch(1, full - trips * columns, PARTITIONS, trips * columns * PARTITIONS)
        if rest:
            yield Batch(1, 1, rest, full * PARTITIONS)

    def _batch(self, held: Access, batch: Batch, first: Affine) -> None:
        table, count = self.table, self.table.elements
        starts = self._starts(batch, first)
        turn = Affine(0, tuple((name, 1) for name in sorted(first.variables)))
        shape = (count, batch.columns) if self.windows_first else (batch.columns, count)
        step, stride = (batch.columns, 1) if self.windows_first else (1, count)
        answer = self._tile(batch.partitions, shape, self.target.dtype, turn)
        held = replace(held, partitions=batch.partitions)
        for number, place in enumerate(product(*map(range, table.window))):
            offset = sum(at * by for at, by in zip(place, table.strides, strict=True))
            with self.builder.recycling():
                where = self._tile(batch.partitions, (batch.columns,), UINT32)
                self._plus(where, starts, offset)
                dst = tile_access(
                    answer.buffer, (batch.columns,), (stride,), offset=number * step, slot=turn
                )
                dst = elementwise.as_bits(dst)
                self.builder.emit(Gather(dst=dst, data=held, indices=where))
        self.builder.emit(DmaCopy(dst=self._stored(batch, first), src=answer))

    def _plus(self, where: Access, starts: Access, offset: int) -> None:
        if offset:
            add = TensorScalar(
                dst=where, data=starts, op0=AluOp.ADD, operand0=Immediate(float(offset))
            )
            self.builder.emit(add)
        else:
            self.builder.emit(TensorCopy(dst=where, src=starts))

    def _starts(self, batch: Batch, first: Affine) -> Access:
        """The starts of windows, in FP32: clamped numbers times elements from one to the next."""
        total: Access | None = None
        loaded = self._indices(batch, first)
        for component in self.table.components:
            apart = component.step * self.table.apart
            if not component.limit or not apart:
                continue
            raw = replace(
                loaded,
                offset=Affine(component.column),
                dims=(Dim(len(self.table.components), batch.columns),),
            )
            inside = self._tile(batch.partitions, (batch.columns,), FLOAT32)
            self.builder.emit(
                TensorScalar(
                    dst=inside, data=raw, op0=AluOp.MAXIMUM, operand0=Immediate(0.0),
                    op1=AluOp.MINIMUM, operand1=Immediate(float(component.limit)),
                )
            )  # fmt: skip
            total = self._more(total, inside, float(apart))
        if total is None:
            total = self._tile(batch.partitions, (batch.columns,), FLOAT32)
            elementwise.fill(self.builder, total, Immediate(0.0))
        return total

    def _more(self, total: Access | None, inside: Access, apart: float) -> Access:
        times = Immediate(apart)
        if total is None:
            multiply = TensorScalar(dst=inside, data=inside, op0=AluOp.MULTIPLY, operand0=times)
            self.builder.emit(multiply)
        else:
            self.builder.emit(
                ScalarTensorTensor(
                    dst=inside, data=inside, op0=AluOp.MULTIPLY, operand0=times, op1=AluOp.ADD,
                    operand1=total,
                )
            )  # fmt: skip
        return inside

    def _indices(self, batch: Batch, first: Affine) -> Access:
        count, (stride, step) = len(self.table.components), self.index.strides
        if not count:
            return self._tile(batch.partitions, (1,), INT32)
        dst = self._tile(
            batch.partitions, (batch.columns * count,), storage_of(self.table.dtype).dtype
        )
        dims = (
            Dim(stride * batch.columns, batch.partitions), Dim(stride, batch.columns),
            Dim(step, count),
        )  # fmt: skip
        offset = first * stride + self.index.offset
        walked = tuple(dim for dim in dims if dim.size > 1) or (Dim(1, 1),)
        self.builder.emit(
            DmaCopy(dst=dst, src=Access(buffer=self.index.buffer, offset=offset, dims=walked))
        )
        return dst

    def _stored(self, batch: Batch, first: Affine) -> Access:
        count, vectors = self.table.elements, self.table.vectors
        by, apart = (1, vectors) if self.windows_first else (count, 1)
        partitions, columns = Dim(by * batch.columns, batch.partitions), Dim(by, batch.columns)
        window = Dim(apart, count)
        free = (window, columns) if self.windows_first else (columns, window)
        walked = tuple(dim for dim in (partitions, *free) if dim.size > 1) or (Dim(1, 1),)
        return Access(buffer=self.target, offset=first * by, dims=walked)

    def _tile(
        self, partitions: int, sizes: tuple[int, ...], dtype: ElementType, turn: Affine = ZERO
    ) -> Access:
        slots = 2 if turn.terms else 1
        buffer = self.builder.tile((partitions, *sizes), dtype, slots=slots, name="l")
        return tile_access(buffer, sizes, dense_strides(sizes), slot=turn)
