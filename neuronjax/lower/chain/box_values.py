"""All values of a box of a chain: the instructions that compute them, tile by tile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_tiles import BoxTiles
from neuronjax.lower.chain.boxes import Axis, size_of
from neuronjax.lower.chain.compose import composed
from neuronjax.lower.chain.tile_program import Node, Output, Reference
from neuronjax.lower.values.storage import storage_of
from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Immediate, Memory, Scalar
from neuronjax.program.operators import Activation, AluOp, ReduceCommand
from neuronjax.program.scalar_engine import Activate, ActivateReduce
from neuronjax.program.vector_engine import TensorCopy, TensorReduce, TensorScalar

STORES = Engine.GPSIMD
"""The engine that starts transfers of results."""

IDENTITIES: Mapping[str, float] = {
    "add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf, "or": 0, "and": 1,
}  # fmt: skip
REDUCERS: Mapping[str, AluOp] = {
    "add": AluOp.ADD, "multiply": AluOp.MULTIPLY, "maximum": AluOp.MAXIMUM,
    "minimum": AluOp.MINIMUM, "or": AluOp.MAXIMUM, "and": AluOp.MINIMUM,
}  # fmt: skip
"""Reductions of a chain -> operator of `tensor_reduce`; truth values are 0 and 1."""


@dataclass
class Values(BoxTiles):
    """The values of one box, in tiles."""

    def seen(self, operand: Reference | Immediate, axes: frozenset[int]) -> Scalar:
        return self.operand(operand, [axis for axis in self.box.free if axis.dim in axes])

    def operand(self, operand: Reference | Immediate, over: Sequence[Axis]) -> Scalar:
        if isinstance(operand, Immediate):
            return operand
        return self.broadcast(self.node_of(operand), self.program.axes_of(operand), over)

    def node_of(self, reference: Reference) -> Access:
        """The tile of a value, computed or loaded now if it is not there yet."""
        if reference not in self.known:
            if reference.is_input:
                self.known[reference] = self.load(reference.number)
            else:
                self.node(reference.number)
        return self.known[reference]

    def node(self, number: int) -> None:
        """Writes the instructions of a node, after those of its operands."""
        reference, cuts = Reference(number), self.chain.shortcuts
        if reference in self.known:
            return
        if number in cuts.widened:
            self.known[reference] = self.node_of(cuts.widened[number])
            return
        pairs = (*cuts.narrowed.items(), *cuts.beside.items())
        wide = next((n for n, convert in pairs if convert == number), None)
        if wide is not None and Reference(wide) not in self.known:
            self.node(wide)
            if reference in self.known:
                return
        node = self.program.nodes[number]
        written = Reference(self._written(number))
        dtype = self.program.nodes[written.number].dtype
        slots = self.chain.slots if self.is_stored(written) else 1
        name = node.name.replace(".", "_")
        place = self.places.get(written)
        dst = place or self.tile(node.axes, storage_of(dtype).dtype, name, slots)
        if node.reduced:
            if number not in cuts.squares or not self._sum_of_squares(number, dst):
                self._reduce(node, dst)
        elif not self._at_once(number, dst):
            self._elementwise(node, dst)
        self.known[reference] = self.known[written] = dst

    def _written(self, number: int) -> int:
        """The node that the instruction of a node writes: itself, or its conversion."""
        cuts = self.chain.shortcuts
        if number in cuts.beside and self._is_exponential(number) and self._adds_up(number):
            return cuts.beside[number]
        return cuts.narrowed.get(number, number)

    def _at_once(self, number: int, dst: Access) -> bool:
        """Writes an operation and what is before it; whether there is such an instruction."""
        if number in self.chain.shortcuts.differences:
            return self._exponential(number, dst)
        if number in self.chain.shortcuts.maxima and self._selected(number, dst):
            return True
        instruction = composed(self, number, dst)
        if instruction is not None:
            self.chain.builder.emit(instruction)
            return True
        return self._scaled_rows(self.program.nodes[number], dst)

    def _selected(self, number: int, dst: Access) -> bool:
        """A selection with its maximum in one instruction for a row; whether it can be."""
        greatest = self.chain.shortcuts.maxima[number]
        selection, node = self.program.nodes[number], self.program.nodes[greatest]
        rows, row = self._apart(node.reduced)
        if not self.is_whole or (rows and size_of(row) < self.chain.builder.rates.row_sum_elements):
            return False
        work, places = self._work(selection, dst), _indices(rows)
        instructions = []
        for at in places:
            part = self.part(dst, selection.axes, at, row)
            srcs = tuple(self._part_of(operand, at, row) for operand in selection.operands)
            instruction = elementwise.selection(replace(work, dst=part, srcs=srcs))
            if instruction is None or not _reads_psum(instruction):
                return False
            instructions.append(instruction)
        top = self.tile(node.axes, FLOAT32, "top", self._slots(greatest))
        for at, instruction in zip(places, instructions, strict=True):
            part = self.part(top, node.axes, at, ())
            command = ReduceCommand.RESET_REDUCE
            self.chain.builder.emit(replace(instruction, reduce_res=part, reduce_cmd=command))
        self.known[Reference(greatest)] = top
        return True

    def _apart(self, reduced: Collection[int]) -> tuple[list[Axis], list[Axis]]:
        """Free axes that number the rows of a partition, and those of a row."""
        free = [axis for axis in self.box.free if axis.size > 1]
        row = [axis for axis in free if axis.dim in reduced]
        return [axis for axis in free if axis not in row], row

    def _part_of(
        self, operand: Reference | Immediate, at: Mapping[Axis, int], over: Sequence[Axis]
    ) -> Scalar:
        """An operand of one row of a partition."""
        if isinstance(operand, Immediate):
            return operand
        return self.part(self.node_of(operand), self.program.axes_of(operand), at, over)

    def _slots(self, number: int) -> int:
        return self.chain.slots if self.is_stored(Reference(number)) else 1

    def _is_exponential(self, number: int) -> bool:
        """Whether the Scalar engine takes the exponential of a difference: from a row value.

        Several rows in a partition take an instruction each, which spares the difference and the
        sum.
        """
        _, shift = self.program.nodes[self.chain.shortcuts.differences[number]].operands
        assert isinstance(shift, Reference)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if not free <= self.program.nodes[number].axes:
            return False
        if self.program.axes_of(shift) & free and not self._adds_up(number):
            return False
        return self.node_of(shift).element_type == FLOAT32

    def _adds_up(self, number: int) -> bool:
        """Whether the Scalar engine adds an exponential up while it writes it."""
        cuts, program = self.chain.shortcuts, self.program
        total = cuts.sums.get(number)
        if total is None or Reference(total) in self.known or not self.is_whole:
            return False
        _, shift = program.nodes[cuts.differences[number]].operands
        assert isinstance(shift, Reference)
        rows, row = self._apart(program.nodes[total].reduced)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if program.axes_of(shift) & free != {axis.dim for axis in rows}:
            return False
        return not rows or self._spares(2, row)

    def _exponential(self, number: int, dst: Access) -> bool:
        """exp(x - m) of a row value m, with its sum, in one instruction for a row; whether it can
        be."""
        cuts, program = self.chain.shortcuts, self.program
        data, shift = program.nodes[cuts.differences[number]].operands
        assert isinstance(data, Reference)
        assert isinstance(shift, Reference)
        if not self._is_exponential(number):
            return False
        axes, of_row = program.nodes[number].axes, program.axes_of(shift)
        bias = self.tile(of_row, FLOAT32, "bias")
        minus = Immediate(-1.0)
        builder = self.chain.builder
        source = self.operand(data, [axis for axis in self.box.free if axis.dim in axes])
        assert isinstance(source, Access)
        row = self.node_of(shift)
        builder.emit(TensorScalar(dst=bias, data=row, op0=AluOp.MULTIPLY, operand0=minus))
        total = cuts.sums.get(number)
        if total is None or not self._adds_up(number):
            builder.emit(Activate(dst=dst, op=Activation.EXP, data=source, bias=bias))
            return True
        kept = program.nodes[total].axes
        sums = self.tile(kept, FLOAT32, "sum", self._slots(total))
        rows, over = self._apart(program.nodes[total].reduced)
        for at in _indices(rows):
            data_of_row = self._part_of(data, at, over)
            assert isinstance(data_of_row, Access)
            builder.emit(
                ActivateReduce(
                    dst=self.part(dst, axes, at, over), op=Activation.EXP, data=data_of_row,
                    bias=self.part(bias, of_row, at, ()),
                    reduce_res=self.part(sums, kept, at, ()),
                )
            )  # fmt: skip
        self.known[Reference(total)] = sums
        return True

    def _sum_of_squares(self, number: int, dst: Access) -> bool:
        """Squares and their sum in one instruction for a row; whether it can be."""
        square = self.program.nodes[self.chain.shortcuts.squares[number]]
        data, total = square.operands[0], self.program.nodes[number]
        assert isinstance(data, Reference)
        rows, row = self._apart(total.reduced)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if not self.is_whole or not free <= square.axes or (rows and not self._spares(1, row)):
            return False
        squares = self.tile(square.axes, FLOAT32, "squares")
        for at in _indices(rows):
            source = self._part_of(data, at, row)
            assert isinstance(source, Access)
            self.chain.builder.emit(
                ActivateReduce(
                    dst=self.part(squares, square.axes, at, row), op=Activation.SQUARE,
                    data=source, reduce_res=self.part(dst, total.axes, at, ()),
                )
            )  # fmt: skip
        return True

    def _spares(self, passes: int, row: Sequence[Axis]) -> bool:
        """Whether an instruction of the Scalar engine for each row, with a sum, is less than so
        many passes of Vector over the row."""
        rates = self.chain.builder.rates
        return rates.row_sum_ns <= passes * size_of(row) * rates.element_ns

    def _scaled_rows(self, node: Node, dst: Access) -> bool:
        """Writes one number per row times the row on the Scalar engine, which norms leave idle."""
        if node.name != "multiply" or node.operand_dtype.name != "float32":
            return False
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if not self.chain.shortcuts.squares or not self.is_whole or not free <= node.axes:
            return False
        for data, row in (node.operands, node.operands[::-1]):
            if not isinstance(data, Reference) or not isinstance(row, Reference):
                return False
            if not free <= self.program.axes_of(data):
                continue
            rows, over = self._apart(free - self.program.axes_of(row))
            if not over or (rows and not self._spares(1, over)):
                continue
            scale = self.node_of(row)
            source = self.node_of(data)
            if scale.element_type != FLOAT32:
                return False
            for at in _indices(rows):
                self.chain.builder.emit(
                    Activate(
                        dst=self.part(dst, node.axes, at, over), op=Activation.COPY,
                        data=self.part(source, self.program.axes_of(data), at, over),
                        scale=self.part(scale, self.program.axes_of(row), at, ()),
                    )
                )  # fmt: skip
            return True
        return False

    def _elementwise(self, node: Node, dst: Access) -> None:
        """The instructions of an operation; PSUM is read if all of them can."""
        builder = self.chain.builder
        body, tiles = self._attempted(node, dst)
        if not all(map(_reads_psum, body)):
            builder.forget(tiles)
            for operand in node.operands:
                if isinstance(operand, Reference):
                    self.in_sbuf(operand)
            body, _ = self._attempted(node, dst)
        for instruction in body:
            builder.emit(instruction)

    def _attempted(self, node: Node, dst: Access) -> tuple[list[Instruction], int]:
        """Instructions that are not part of the kernel yet, and how many tiles there were."""
        work, builder = self._work(node, dst), self.chain.builder
        tiles = builder.tile_count
        with builder.block() as body:
            elementwise.emit(work)
        return [
            node_of_body for node_of_body in body if isinstance(node_of_body, Instruction)
        ], tiles

    def _work(self, node: Node, dst: Access) -> elementwise.Work:
        over = [axis for axis in self.box.free if axis.dim in node.axes]
        return elementwise.Work(
            builder=self.chain.builder,
            name=node.name.removeprefix("reduce_"),  # of one element: value and initial value
            attributes=dict(node.attributes),
            dst=dst,
            srcs=tuple(self.operand(operand, over) for operand in node.operands),
            operand=node.operand_dtype,
            result=node.dtype,
        )

    def in_sbuf(self, reference: Reference) -> Access:
        """The tile of a value, copied out of PSUM if it lies there."""
        access = self.node_of(reference)
        if access.memory is Memory.PSUM:
            program = self.program
            rows = program.inputs if reference.is_input else program.nodes
            dtype = storage_of(rows[reference.number].dtype).dtype
            slots = self.chain.slots if self.is_stored(reference) else 1
            copied = self.tile(program.axes_of(reference), dtype, "out", slots)
            over = [axis for axis in self.box.free if axis.dim in program.axes_of(reference)]
            src = self.broadcast(access, program.axes_of(reference), over)
            self.chain.builder.emit(TensorCopy(dst=copied, src=src))
            self.known[reference] = copied
        return self.known[reference]

    def _reduce(self, node: Node, dst: Access) -> None:
        data, init = node.operands
        assert isinstance(data, Reference)
        result = dst if is_from_identity(node) else self._partial(node)
        self._reduced_to(result, node, data)
        if result is not dst:
            self._combine(node, dst, result, self.operand(init, self._kept(node)))

    def _kept(self, node: Node) -> list[Axis]:
        return [axis for axis in self.box.free if axis.dim in node.axes]

    def _partial(self, node: Node) -> Access:
        return self.tile(node.axes, storage_of(node.dtype).dtype, "part")

    def _reduced_to(self, dst: Access, node: Node, data: Reference) -> None:
        source = self.node_of(data)
        axes = self.program.axes_of(data)
        kept = self._kept(node)
        reduced = [axis for axis in self.box.free if axis.dim in node.reduced]
        inner = self.broadcast(source, axes, reduced).dims
        outer = self.broadcast(source, axes, kept).dims
        if [dim.size for dim in outer] == [1] and not kept:
            outer = ()
        self.chain.builder.emit(
            TensorReduce(
                dst=dst,
                op=REDUCERS[node.name.removeprefix("reduce_")],
                data=replace(source, dims=(*outer, *inner)),
                axes=len(inner),
            )
        )

    def _combine(self, node: Node, dst: Access, access: Access, other: Scalar) -> None:
        elementwise.emit(
            elementwise.Work(
                builder=self.chain.builder,
                name=node.name.removeprefix("reduce_"),
                attributes={},
                dst=dst,
                srcs=(access, other),
                operand=node.dtype,
                result=node.dtype,
            )
        )

    def accumulator(self, number: int) -> Access:
        """A tile that holds the initial value of a reduction."""
        node = self.program.nodes[number]
        total = self.tile(node.axes, storage_of(node.dtype).dtype, "sum")
        init = self.operand(node.operands[1], self._kept(node))
        elementwise.fill(self.chain.builder, total, init)
        return total

    def accumulate(self, number: int, total: Access, inner: Values) -> None:
        """Adds one chunk of a reduction."""
        node = self.program.nodes[number]
        data = node.operands[0]
        assert isinstance(data, Reference)
        if inner.is_whole and is_from_identity(node):
            inner.node_of(data)  # which may add up by itself
            part = inner.node_of(Reference(number))
        else:
            part = inner._partial(node)
            inner._reduced_to(part, node, data)
        self._combine(node, total, total, part)

    def store(self, output: Output) -> None:
        value = self.in_sbuf(output.value)
        varying = self.program.axes_of(output.value)
        axes = [*self.box.partitions, *(a for a in self.box.free if a.dim in varying)]
        dst = self.hbm(output.buffer, output.strides, output.offset, axes)
        builder = self.chain.builder
        queue = builder.queue(1)  # not that of loads, which do not wait for results
        builder.emit(DmaCopy(dst=dst, src=value, engine=STORES, queue=queue))


def _indices(axes: Sequence[Axis]) -> list[dict[Axis, int]]:
    """All positions along some axes."""
    ranges = (range(axis.size) for axis in axes)
    return [dict(zip(axes, index, strict=True)) for index in itertools.product(*ranges)]


def is_from_identity(node: Node) -> bool:
    """Whether a reduction begins with what changes nothing."""
    name, init = node.name.removeprefix("reduce_"), node.operands[-1]
    return isinstance(init, Immediate) and float(init.value) == IDENTITIES[name]


def _reads_psum(instruction: Instruction) -> bool:
    """Whether an instruction may read what it reads of PSUM: one operand, not on GpSimd."""
    reads = [read for read in instruction.reads() if isinstance(read, Access)]
    count = sum(read.memory is Memory.PSUM for read in reads)
    return not count or (count == 1 and instruction.engine in (Engine.VECTOR, Engine.SCALAR))
