"""How transfers execute. Sums are in float32; elements of equal types move as they are."""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.arithmetic import ARITHMETIC
from neuronjax.emulate.element_types import decoder, encoder
from neuronjax.emulate.exchange import Exchange, Sent
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Read, Run, Unit
from neuronjax.errors import MemoryAccessError, OutOfBoundsError
from neuronjax.program.dma import (
    DmaCompute,
    DmaCopy,
    DmaGather,
    DmaGatherTranspose,
    DmaScatter,
    DmaTranspose,
    SendReceive,
)
from neuronjax.program.operand import Access
from neuronjax.program.operators import OutOfBounds


def dma_copy(each: DmaCopy, unit: Unit) -> Run:
    """dst = src."""
    if each.src.element_type == each.dst.element_type:
        read, write = unit.raw(each.src), unit.mover(each.dst)
    else:
        read, write = unit.numbers(each.src), unit.output(each.dst)

    def run(values: Values) -> None:
        write(values, read(values))

    return run if each.out_of_bounds is OutOfBounds.ERROR else _skipping(run)


def _skipping(run: Run) -> Run:
    """Does nothing where an address is outside its buffer."""

    def skipping(values: Values) -> None:
        try:
            run(values)
        except MemoryAccessError:
            return

    return skipping


class _Rows:
    """A table whose first dimension counts rows: some of them are read or written."""

    def __init__(self, unit: Unit, access: Access) -> None:
        self._window = unit.window(access, merges=False)
        self._watcher = unit.watcher
        self._path = unit.place.path
        self._decode = decoder(access.element_type)
        self._encode = encoder(access.element_type, unit.core.rounding, unit.core.rounded)
        self.count = access.dims[0].size
        self.size = access.free_elements // self.count

    def within(self, index: Array, mode: OutOfBounds) -> Array:
        """Which indices name a row. Raises ``OutOfBoundsError`` unless others are skipped."""
        inside = (index >= 0) & (index < self.count)
        if mode is OutOfBounds.ERROR and not inside.all():
            raise OutOfBoundsError(
                f"{self._path}: row {index[~inside][0]} of {self._window.access.buffer.name}, whose"
                f" access has {self.count} rows. Clamp the indices, or skip what is out of bounds."
            )
        return inside

    def read(self, values: Values, index: Array) -> Array:
        """Rows as they are, [indices, elements of a row]."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._where(index))
        return self._window.view(values)[0][index].reshape(len(index), self.size)

    def numbers(self, values: Values, index: Array) -> Array:
        """Rows as float32."""
        return self._decode(self.read(values, index))

    def write(self, values: Values, index: Array, rows: Array) -> None:
        """Writes numbers or integers into rows; of equal indices the last one counts."""
        view = self._window.view(values)[0]
        fresh = np.empty((len(index), *view.shape[1:]), view.dtype)
        self._encode(fresh, rows.reshape(fresh.shape))
        self._put(values, view, index, fresh)

    def move(self, values: Values, index: Array, rows: Array) -> None:
        """Writes elements as they are."""
        view = self._window.view(values)[0]
        self._put(values, view, index, rows.reshape(len(index), *view.shape[1:]))

    def _put(self, values: Values, view: Array, index: Array, rows: Array) -> None:
        view[index] = rows
        if self._watcher is not None:
            self._watcher.writes(self._window, values, self._where(index))

    def _where(self, index: Array) -> Array:
        mask = np.zeros((1, self.count), bool)
        mask[0, index] = True
        return mask


def _indices(unit: Unit, access: Access) -> Read:
    read = unit.bits(access)
    return lambda values: read(values).reshape(-1).astype(np.int64)


def dma_gather(each: DmaGather, unit: Unit) -> Run:
    """dst[p] = or += table[index[p]]."""
    table, index, dst = _Rows(unit, each.table), _indices(unit, each.index), unit.part(each.dst)
    same = each.table.element_type == each.dst.element_type
    shape = (each.dst.partitions, each.dst.free_elements)

    def run(values: Values) -> None:
        rows = index(values)
        inside = table.within(rows, each.out_of_bounds)
        read = table.read if same and not each.accumulate else table.numbers
        found = read(values, rows[inside])
        where = None if inside.all() else _rows_of(inside, shape)
        if where is not None:
            full = np.zeros((len(rows), table.size), found.dtype)
            full[inside] = found
            found = full
        found = found.reshape(shape)
        if each.accumulate:
            dst.write(values, dst.numbers(values, where) + found, where)
        elif same:
            dst.move(values, found, where)
        else:
            dst.write(values, found, where)

    return run


def _rows_of(inside: Array, shape: tuple[int, int]) -> Array:
    """A mask of rows as one of elements [partitions, free elements]."""
    return np.broadcast_to(
        inside[:, None], (len(inside), shape[0] * shape[1] // len(inside))
    ).reshape(shape)


def dma_scatter(each: DmaScatter, unit: Unit) -> Run:
    """table[index[p]] = or += src[p]."""
    table, index = _Rows(unit, each.table), _indices(unit, each.index)
    same = each.table.element_type == each.src.element_type and not each.accumulate
    src = unit.bits(each.src) if same else unit.numbers(each.src)

    def run(values: Values) -> None:
        rows = index(values)
        inside = table.within(rows, each.out_of_bounds)
        rows, found = rows[inside], src(values).reshape(len(rows), -1)[inside]
        if each.accumulate:
            table.write(values, rows, table.numbers(values, rows) + found)
        elif same:
            table.move(values, rows, found)
        else:
            table.write(values, rows, found)

    return run


def _axes_view(array: Array, access: Access, axes: tuple[int, ...]) -> Array:
    """Elements with as many axes as are permuted, partitions first; what is left is one axis."""
    shape = (access.partitions, *access.sizes) if access.buffer.on_chip else access.sizes
    kept = len(axes) - 1
    return array.reshape(*shape[:kept], -1)


def dma_transpose(each: DmaTranspose, unit: Unit) -> Run:
    """dst = src with its axes permuted."""
    read, move = unit.bits(each.src), unit.mover(each.dst)

    def run(values: Values) -> None:
        turned = _axes_view(read(values), each.src, each.axes).transpose(each.axes)
        move(values, np.ascontiguousarray(turned))

    return run


def dma_gather_transpose(each: DmaGatherTranspose, unit: Unit) -> Run:
    """dst = (rows of table)ᵀ, the indices column by column."""
    table, index, dst = _Rows(unit, each.table), unit.bits(each.index), unit.part(each.dst)
    sizes = each.table.sizes[1:]
    kept = len(each.axes) - 1
    flat = (each.dst.partitions, each.dst.free_elements)

    def turned(rows: Array) -> Array:
        axes = rows.reshape(len(rows), *sizes).reshape(len(rows), *sizes[: kept - 1], -1)
        return np.ascontiguousarray(axes.transpose(each.axes)).reshape(flat)

    def run(values: Values) -> None:
        rows = index(values).reshape(-1, order="F").astype(np.int64)
        inside = table.within(rows, each.out_of_bounds)
        full = np.zeros((len(rows), table.size), unit.dtype(each.table))
        full[inside] = table.read(values, rows[inside])
        mask = np.broadcast_to(inside[:, None], full.shape)
        dst.move(values, turned(full), None if inside.all() else turned(mask))

    return run


def dma_compute(each: DmaCompute, unit: Unit) -> Run:
    """dst = reduce_op over srcs."""
    reads = [unit.numbers(src) for src in each.srcs]
    write, operator = unit.output(each.dst), ARITHMETIC[each.reduce_op]

    def run(values: Values) -> None:
        total = reads[0](values).reshape(-1)
        for read in reads[1:]:
            total = operator(total, read(values).reshape(-1))
        write(values, total)

    return run


def send_receive(each: SendReceive, unit: Unit) -> Exchange:
    """src goes to one rank while dst takes what another sends."""
    read, write = unit.bits(each.src), unit.mover(each.dst)
    members = tuple(sorted({unit.core.rank, each.send_to_rank, each.recv_from_rank}))

    def combine(sent: Sent, rank: int) -> list[Array]:
        return sent[each.recv_from_rank]

    return Exchange(
        stream=f"pipe {each.pipe_id}",
        members=members,
        description=f"sendrecv of {each.src.element_type.name}[{each.src.elements}]",
        send=lambda values: [read(values).copy()],
        combine=combine,
        receive=lambda values, results: write(values, results[0]),
    )


RULES: Rules = {
    DmaCopy: dma_copy,
    DmaGather: dma_gather,
    DmaScatter: dma_scatter,
    DmaTranspose: dma_transpose,
    DmaGatherTranspose: dma_gather_transpose,
    DmaCompute: dma_compute,
    SendReceive: send_receive,
}
"""Instruction -> what makes it a function or an exchange."""
