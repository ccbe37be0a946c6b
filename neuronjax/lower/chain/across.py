"""Sums over dimensions that lie across rows of memory, or over everything.

Rows pass through all partitions and are added up there, element by element; the Tensor engine adds
the partitions, as a product with ones. Sums are in float32, in another order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import Axis, Box, Chunk, boxes, greatest_divisor, pieces, size_of
from neuronjax.lower.chain.positions import nest, origin, shifted
from neuronjax.lower.chain.tile_program import Input, Node, Reference, TileProgram
from neuronjax.lower.chain.tiles import TileEmitter, needed
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import dense_strides
from neuronjax.lower.write.builder import tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import Affine
from neuronjax.program.operand import Access, Dim, Immediate, Memory
from neuronjax.program.operators import AluOp
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import Memset, TensorCopy, TensorReduce, TensorTensor


def write_chain(emitter: TileEmitter) -> None:
    """The instructions of a whole chain."""
    if is_across(emitter.program, emitter.builder.tuning):
        Across(emitter).write()
    else:
        emitter.emit()


def is_across(program: TileProgram, tuning: Tuning) -> bool:
    """Whether all reductions are sums, that nothing as large waits for, across rows of memory."""
    sums = [node for node in program.nodes if node.reduced]
    plain = all(
        node.name == "reduce_add" and node.dtype.name == "float32" and _begins_at_zero(node)
        for node in sums
    )
    length = math.prod(program.domain[dim] for dim in program.reduced)
    if not sums or not plain or length < PARTITIONS or _waits(program):
        return False
    kept = [dim for dim in range(len(program.domain)) if dim not in program.reduced]
    if math.prod(program.domain[dim] for dim in kept) == 1:
        return _width(program, tuning.tile_elements) > 1
    large = [source for source in program.inputs if source.axes >= program.reduced | set(kept)]
    if not large:
        return False
    if all(_innermost(source) in kept for source in large):
        return True
    inner = _inner(program)
    width = math.prod(program.domain[dim] for dim in (*kept, *inner))
    return 0 < len(inner) < len(program.reduced) and width <= tuning.tile_elements


def _inner(program: TileProgram) -> tuple[int, ...]:
    """Reduced dimensions that lie within those that are kept: small groups of neighbours."""
    groups: set[tuple[int, ...]] = set()
    for source in program.inputs:
        if len(source.axes) == len(program.domain):
            order = sorted(source.axes, key=lambda dim: abs(source.strides[dim]))
            group = itertools.takewhile(program.reduced.__contains__, order)
            groups.add(tuple(sorted(group)))
    (inner, *others) = groups or {()}
    return inner if not others and len(inner) < len(program.domain) else ()


def _begins_at_zero(node: Node) -> bool:
    init = node.operands[1]
    return isinstance(init, Immediate) and float(init.value) == 0.0


def _waits(program: TileProgram) -> bool:
    """Whether a tensor over reduced dimensions depends on a sum."""
    late: set[Reference] = set()
    for number, node in enumerate(program.nodes):
        if node.reduced or late.intersection(node.operands):
            late.add(Reference(number))
            if node.axes & program.reduced:
                return True
            if node.reduced and late.intersection(node.operands):
                return True
    return False


def _innermost(source: Input) -> int:
    return min(source.axes, key=lambda dim: abs(source.strides[dim]))


def _width(program: TileProgram, most: int) -> int:
    """Elements of a row, where everything is added up: a divisor of the last dimension."""
    size = program.domain[max(program.reduced)]
    total = math.prod(program.domain[dim] for dim in program.reduced)
    most = min(most, max(1, total // PARTITIONS))
    return greatest_divisor(size, most)


@dataclass
class Across:
    """Writes such a chain."""

    emitter: TileEmitter

    def __post_init__(self) -> None:
        self.program = self.emitter.program
        self.builder = self.emitter.builder
        self.sums = [n for n, node in enumerate(self.program.nodes) if node.reduced]

    def write(self) -> None:
        """The whole chain."""
        program = self.program
        sizes = enumerate(program.domain)
        kept = [Axis(d, n) for d, n in sizes if d not in program.reduced and n > 1]
        within = _inner(program) if kept else ()
        inner = tuple(Axis(dim, program.domain[dim]) for dim in within)
        rows = sorted(program.reduced - set(within))
        reduced = [Axis(dim, program.domain[dim]) for dim in rows]
        if not kept:
            width, last = _width(program, self.builder.tuning.tile_elements), reduced.pop()
            inner = (Axis(last.dim, width),)
            if last.size > width:
                reduced.append(Axis(last.dim, last.size // width, width))
        for chunk in pieces(kept, (), self.builder.tuning.tile_elements):
            start = origin(len(program.domain), chunk.base)
            columns = partial(self._columns, chunk.free, inner, reduced)
            nest(self.builder, chunk.loops, start, columns)

    def _columns(
        self,
        columns: tuple[Axis, ...],
        inner: tuple[Axis, ...],
        rows: Sequence[Axis],
        position: dict[int, Affine],
    ) -> None:
        """All rows of some columns, each of `inner` elements; a partition has neighbouring rows."""
        neighbours = _group(
            rows, self.builder.tuning.tile_elements // (size_of(columns) * size_of(inner))
        )
        if neighbours.size > 1:
            rows = [
                *rows[:-1],
                Axis(neighbours.dim, rows[-1].size // neighbours.size, neighbours.size),
            ]
        free = (neighbours, *columns, *inner)
        size = math.prod(axis.size for axis in free)
        totals = {}
        for number in self.sums:
            tile = self.builder.tile((PARTITIONS, size), FLOAT32, name="total")
            totals[number] = tile_access(tile, [size], [1])
            self.builder.emit(Memset(dst=totals[number], value=Immediate(0.0)))
        for region in boxes(rows, 1, 0, ()):
            start = shifted(position, region.base)
            same = self.emitter.shared(replace(region, free=free, chunks=(Chunk((), ()),)), start)

            def add(
                at: dict[int, Affine],
                partitions: tuple[Axis, ...] = region.partitions,
                same: Mapping[Reference, Access] = same,
            ) -> None:
                self._add(Box(partitions, free, at), totals, same)

            nest(self.builder, region.loops, start, add)
        outer = Values(self.emitter, Box((), columns, position), {})
        for number, total in totals.items():
            outer.known[Reference(number)] = self._added_up(
                total, columns, neighbours.size, size_of(inner)
            )
        for output in self.program.outputs:
            if not self.program.axes_of(output.value) & self.program.reduced:
                outer.node_of(output.value)
                outer.store(output)

    def _add(self, box: Box, totals: dict[int, Access], same: Mapping[Reference, Access]) -> None:
        """Adds one tile of rows to the totals."""
        values = Values(self.emitter, box, dict(same))
        for number in needed(self.program, self.sums):
            if number not in self.emitter.shortcuts.absorbed:
                values.node(number)
        for number, total in totals.items():
            data = self.program.nodes[number].operands[0]
            seen = values.operand(data, box.free)
            assert isinstance(seen, Access)
            dst = tile_access(total.buffer, [seen.free_elements], [1], partitions=box.count)
            self.builder.emit(TensorTensor(dst=dst, data1=dst, data2=seen, op=AluOp.ADD))
        for output in self.program.outputs:
            if self.program.axes_of(output.value) & self.program.reduced:
                values.node_of(output.value)
                values.store(output)

    def _added_up(self, total: Access, columns: Sequence[Axis], rows: int, inner: int) -> Access:
        """The sum over partitions, and what of a column lies in one, or over everything."""
        if rows * inner > 1:
            count = size_of(columns)
            tile = self.builder.tile((PARTITIONS, count), FLOAT32, name="part")
            part = tile_access(tile, [count], [1])
            within = [Dim(count * inner, rows), Dim(1, inner)]
            reduced = tuple(dim for dim in within if dim.size > 1)
            outer = (Dim(inner, count),) if count > 1 else ()
            data = replace(total, dims=(*outer, *reduced))
            axes = len(reduced)
            self.builder.emit(TensorReduce(dst=part, op=AluOp.ADD, data=data, axes=axes))
            total = part
        size = total.free_elements
        ones = tile_access(self.builder.tile((PARTITIONS, 1), FLOAT32, name="ones"), [1], [1])
        self.builder.emit(Memset(dst=ones, value=Immediate(1.0)))
        row = self.builder.tile((1, size), FLOAT32, name="sum")
        most = self.builder.core.psum.bank_bytes // 4
        for first in range(0, size, most):
            count = min(most, size - first)
            bank = self.builder.tile((1, count), FLOAT32, Memory.PSUM, name="acc")
            dst = tile_access(bank, [count], [1])
            moving = tile_access(total.buffer, [count], [1], offset=first)
            self.builder.emit(Matmul(dst=dst, stationary=ones, moving=moving))
            part = tile_access(row, [count], [1], offset=first)
            self.builder.emit(TensorCopy(dst=part, src=dst))
        sizes = [axis.size for axis in columns]
        return tile_access(row, sizes, dense_strides(sizes))


def _group(rows: Sequence[Axis], most: int) -> Axis:
    """Neighbouring rows that lie in one partition: long runs, and every partition has some."""
    last = rows[-1]
    total = size_of(rows)
    most = min(most, total // PARTITIONS) if last.step == 1 else 1
    return Axis(last.dim, greatest_divisor(last.size, most), last.step)
