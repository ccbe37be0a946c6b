"""How transfers execute. Sums are in float32; elements are copied bit by bit if types are equal."""

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
    DevicePrint,
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


def dma_copy(instruction: DmaCopy, unit: Unit) -> Run:
    """dst = src."""
    if instruction.src.element_type == instruction.dst.element_type:
        read, write = unit.raw(instruction.src), unit.mover(instruction.dst)
    else:
        read, write = unit.numbers(instruction.src), unit.output(instruction.dst)

    def run(values: Values) -> None:
        write(values, read(values))

    return run if instruction.out_of_bounds is OutOfBounds.ERROR else _skipping(run)


def _skipping(run: Run) -> Run:
    """Skips the transfer if an address is outside its buffer."""

    def skipping(values: Values) -> None:
        try:
            run(values)
        except MemoryAccessError:
            return

    return skipping


class _Rows:
    """Selected rows of a table, whose first dimension counts rows."""

    def __init__(self, unit: Unit, access: Access) -> None:
        self._window = unit.window(access, merges=False)
        self._watcher = unit.watcher
        self._path = unit.place.path
        self._decode = decoder(access.element_type)
        self._encode = encoder(access.element_type, unit.core.rounding, unit.core.rounding_bits)
        self.count = access.dims[0].size
        self.size = access.free_elements // self.count

    def within(self, index: Array, mode: OutOfBounds) -> Array:
        """Which indices are in bounds. Raises ``OutOfBoundsError`` unless others are skipped."""
        inside = (index >= 0) & (index < self.count)
        if mode is OutOfBounds.ERROR and not inside.all():
            raise OutOfBoundsError(
                f"{self._path}: row {index[~inside][0]} of {self._window.access.buffer.name} is out"
                f" of bounds: the access has {self.count} rows. Clamp the indices, or use"
                " oob_mode.skip."
            )
        return inside

    def read(self, values: Values, index: Array) -> Array:
        """The rows' elements, unconverted: [indices, elements of a row]."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._where(index))
        return self._window.view(values)[0][index].reshape(len(index), self.size)

    def numbers(self, values: Values, index: Array) -> Array:
        """The rows of an index as float32."""
        return self._decode(self.read(values, index))

    def write(self, values: Values, index: Array, rows: Array) -> None:
        """Writes numbers or integers into rows; the last of several equal indices wins."""
        view = self._window.view(values)[0]
        fresh = np.empty((len(index), *view.shape[1:]), view.dtype)
        self._encode(fresh, rows.reshape(fresh.shape))
        self._put(values, view, index, fresh)

    def move(self, values: Values, index: Array, rows: Array) -> None:
        """Writes elements as they are."""
        view = self._window.view(values)[0]
        self._put(values, view, index, rows.reshape(len(index), *view.shape[1:]))

    def _put(self, values: Values, view: Array, index: Array, rows: Array) -> None:
        if self._watcher is not None:
            self._watcher.writes(self._window, values, self._where(index))
        view[index] = rows

    def _where(self, index: Array) -> Array:
        mask = np.zeros((1, self.count), bool)
        mask[0, index] = True
        return mask


def _indices(unit: Unit, access: Access) -> Read:
    read = unit.bits(access)
    return lambda values: read(values).reshape(-1).astype(np.int64)


def dma_gather(instruction: DmaGather, unit: Unit) -> Run:
    """dst[p] = or += table[index[p]]."""
    table, index, dst = (
        _Rows(unit, instruction.table),
        _indices(unit, instruction.index),
        unit.part(instruction.dst),
    )
    same = instruction.table.element_type == instruction.dst.element_type
    shape = (instruction.dst.partitions, instruction.dst.free_elements)

    def run(values: Values) -> None:
        rows = index(values)
        inside = table.within(rows, instruction.out_of_bounds)
        read = table.read if same and not instruction.accumulate else table.numbers
        gathered = read(values, rows[inside])
        where = None if inside.all() else _rows_of(inside, shape)
        if where is not None:
            full = np.zeros((len(rows), table.size), gathered.dtype)
            full[inside] = gathered
            gathered = full
        gathered = gathered.reshape(shape)
        if instruction.accumulate:
            dst.write(values, dst.numbers(values, where) + gathered, where)
        elif same:
            dst.move(values, gathered, where)
        else:
            dst.write(values, gathered, where)

    return run


def _rows_of(inside: Array, shape: tuple[int, int]) -> Array:
    """Expands a mask of rows to a mask of elements [partitions, free elements]."""
    return np.broadcast_to(
        inside[:, None], (len(inside), shape[0] * shape[1] // len(inside))
    ).reshape(shape)


def dma_scatter(instruction: DmaScatter, unit: Unit) -> Run:
    """table[index[p]] = or += src[p]."""
    table, index = _Rows(unit, instruction.table), _indices(unit, instruction.index)
    same = (
        instruction.table.element_type == instruction.src.element_type
        and not instruction.accumulate
    )
    src = unit.bits(instruction.src) if same else unit.numbers(instruction.src)

    def run(values: Values) -> None:
        rows = index(values)
        inside = table.within(rows, instruction.out_of_bounds)
        rows, updates = rows[inside], src(values).reshape(len(rows), -1)[inside]
        if instruction.accumulate:
            table.write(values, rows, table.numbers(values, rows) + updates)
        elif same:
            table.move(values, rows, updates)
        else:
            table.write(values, rows, updates)

    return run


def _axes_view(array: Array, access: Access, axes: tuple[int, ...]) -> Array:
    """Elements with one axis per permuted axis, partitions first; the rest is flattened."""
    shape = (access.partitions, *access.sizes) if access.buffer.on_chip else access.sizes
    kept = len(axes) - 1
    return array.reshape(*shape[:kept], -1)


def dma_transpose(instruction: DmaTranspose, unit: Unit) -> Run:
    """dst = src with its axes permuted."""
    read, move = unit.bits(instruction.src), unit.mover(instruction.dst)

    def run(values: Values) -> None:
        turned = _axes_view(read(values), instruction.src, instruction.axes).transpose(
            instruction.axes
        )
        move(values, np.ascontiguousarray(turned))

    return run


def dma_gather_transpose(instruction: DmaGatherTranspose, unit: Unit) -> Run:
    """dst = (rows of table)ᵀ, the indices column by column."""
    table, index, dst = (
        _Rows(unit, instruction.table),
        unit.bits(instruction.index),
        unit.part(instruction.dst),
    )
    sizes = instruction.table.sizes[1:]
    kept = len(instruction.axes) - 1
    flat = (instruction.dst.partitions, instruction.dst.free_elements)

    def turned(rows: Array) -> Array:
        axes = rows.reshape(len(rows), *sizes).reshape(len(rows), *sizes[: kept - 1], -1)
        return np.ascontiguousarray(axes.transpose(instruction.axes)).reshape(flat)

    def run(values: Values) -> None:
        rows = index(values).reshape(-1, order="F").astype(np.int64)
        inside = table.within(rows, instruction.out_of_bounds)
        full = np.zeros((len(rows), table.size), unit.dtype(instruction.table))
        full[inside] = table.read(values, rows[inside])
        mask = np.broadcast_to(inside[:, None], full.shape)
        dst.move(values, turned(full), None if inside.all() else turned(mask))

    return run


def dma_compute(instruction: DmaCompute, unit: Unit) -> Run:
    """dst = reduce_op over srcs."""
    reads = [unit.numbers(src) for src in instruction.srcs]
    write, operator = unit.output(instruction.dst), ARITHMETIC[instruction.reduce_op]

    def run(values: Values) -> None:
        total = reads[0](values).reshape(-1)
        for read in reads[1:]:
            total = operator(total, read(values).reshape(-1))
        write(values, total)

    return run


def send_receive(instruction: SendReceive, unit: Unit) -> Exchange:
    """Sends src to one rank, or core of a split, while dst receives from another."""
    read, write = unit.bits(instruction.src), unit.mover(instruction.dst)
    members = tuple(sorted({unit.member, instruction.send_to_rank, instruction.recv_from_rank}))

    def combine(sent: Sent, rank: int) -> list[Array]:
        return sent[instruction.recv_from_rank]

    return Exchange(
        stream=f"pipe {instruction.pipe_id}",
        members=members,
        description=f"sendrecv of {instruction.src.element_type.name}[{instruction.src.elements}]",
        send=lambda values: [read(values).copy()],
        combine=combine,
        receive=lambda values, results: write(values, results[0]),
        is_between_cores=unit.split_core is not None,
    )


def device_print(instruction: DevicePrint, unit: Unit) -> Run:
    """Prints src on standard output."""
    src, read = instruction.src, unit.raw(instruction.src)
    shape = (src.partitions, *src.sizes) if src.buffer.on_chip else src.sizes

    def run(values: Values) -> None:
        print(instruction.prefix, np.array2string(read(values).reshape(shape)), flush=True)

    return run


RULES: Rules = {
    DmaCopy: dma_copy,
    DmaGather: dma_gather,
    DmaScatter: dma_scatter,
    DmaTranspose: dma_transpose,
    DmaGatherTranspose: dma_gather_transpose,
    DmaCompute: dma_compute,
    SendReceive: send_receive,
    DevicePrint: device_print,
}
"""Instruction -> rule that turns it into a function or an exchange."""
