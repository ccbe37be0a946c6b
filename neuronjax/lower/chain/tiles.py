"""A fused chain of element-wise operations and row reductions, as one pass over tiles.

A `TileProgram` computes over a domain of dimensions. Each of its values varies along some of them:
all of them (a tensor), all but the reduced ones (a row value), or fewer (a bias); broadcasts within
the chain cost nothing. `regions` cuts the domain into boxes that need no masks: loops, partitions,
free elements. `TileEmitter` writes the instructions of one box.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.compose import composed
from neuronjax.lower.chain.held import most_held
from neuronjax.lower.chain.shortcuts import Shortcuts, shortcuts
from neuronjax.lower.chain.spread import is_spread, spread, stays_in_psum
from neuronjax.lower.chain.tile_program import Input, Node, Output, Reference, TileProgram, levels
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import walk
from neuronjax.lower.write.builder import PARTITIONS, KernelBuilder, room_of, tile_access
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Immediate, Memory, Scalar
from neuronjax.program.operators import Activation, AluOp, ReduceCommand
from neuronjax.program.scalar_engine import Activate, ActivateReduce
from neuronjax.program.vector_engine import TensorCopy, TensorReduce, TensorScalar

FREE_ELEMENTS = 2048
"""Elements of a tile in one partition, where nothing asks for more."""
MIN_FREE_ELEMENTS = 64
LONG_ROW = 256
"""Elements of a reduced row from which on a partition has one at a time: its sums are scalars."""
SLOTS = 2
"""Tiles of a value that is loaded or stored in a loop."""
SHARED_BYTES = 32 * 1024
"""Most bytes in a partition of what all tiles of a loop share."""
HELD_BYTES = 24
"""Bytes per element of values between: those of the dead make room for others."""
ROW_BYTES = 150 * 1024
"""Bytes of a partition that the tiles of a chain over whole rows may take."""
MAX_FREE_AXES = 3
STORES = Engine.GPSIMD
"""The engine that starts transfers of results."""


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
    """Elements of a tile in one partition: fewer where many tiles are held at once."""
    dtypes = [storage_of(source.dtype).dtype for source in program.inputs]
    dtypes += [storage_of(program.dtype_of(output.value)).dtype for output in program.outputs]
    held = sum(map(bytes_of, dtypes)) * SLOTS + HELD_BYTES
    return max(MIN_FREE_ELEMENTS, min(FREE_ELEMENTS, ROW_BYTES // held))


def is_resident(elements: int, nbytes: int) -> bool:
    """Whether rows of so many elements, with tiles of so many bytes per element, fit at once."""
    return elements * nbytes <= ROW_BYTES


def _row_bytes(program: TileProgram) -> int:
    """Bytes per element of all tensors of a chain; tiles of the dead are used again, so at most
    a few of its values count, but all that is loaded."""

    def sizes(values: Sequence[Input | Node]) -> list[int]:
        reduced = [value for value in values if value.axes & program.reduced]
        return [bytes_of(storage_of(value.dtype).dtype) for value in reduced]

    loaded = sizes(program.inputs)
    most = sorted((*loaded, *sizes(program.nodes)))[-6:]
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


IDENTITIES: Mapping[str, float] = {
    "add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf, "or": 0, "and": 1,
}  # fmt: skip
REDUCERS: Mapping[str, AluOp] = {
    "add": AluOp.ADD, "multiply": AluOp.MULTIPLY, "maximum": AluOp.MAXIMUM,
    "minimum": AluOp.MINIMUM, "or": AluOp.MAXIMUM, "and": AluOp.MINIMUM,
}  # fmt: skip
"""Reductions of a chain -> operator of `tensor_reduce`; truth values are 0 and 1."""


@dataclass
class TileEmitter:
    """Writes the instructions of a chain; `buffers` are those its inputs and outputs number."""

    builder: KernelBuilder
    program: TileProgram
    buffers: Sequence[Buffer]
    #: Tiles per input that is loaded in a loop.
    slots: int = SLOTS
    #: Whether the Tensor engine is free to spread rows over partitions.
    spreads: bool = False
    #: Values that somebody wants in tiles, as they are.
    wanted: frozenset[Reference] = frozenset()
    _values: dict[Reference, tuple[Buffer, tuple[Axis, ...]] | Access] = field(default_factory=dict)

    @functools.cached_property
    def shortcuts(self) -> Shortcuts:
        """Operations that need no instruction of their own."""
        return shortcuts(self.program, self.wanted)

    @functools.cached_property
    def neighbours(self) -> Mapping[int, int]:
        """Dimension -> elements of inputs and outputs that lie side by side along it."""
        program, neighbours = self.program, dict.fromkeys(range(len(self.program.domain)), 0)
        walks = [
            (source.axes, source.strides) for source in program.inputs if source.buffer is not None
        ]
        walks += [(program.axes_of(output.value), output.strides) for output in program.outputs]
        for axes, strides in walks:
            elements = math.prod(program.domain[dim] for dim in axes)
            for dim in axes:
                neighbours[dim] += elements if strides[dim] == 1 else 0
        return neighbours

    def inwards(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Free axes in the order in which tiles hold them: as memory does, for long transfers."""
        return tuple(
            sorted(axes, key=lambda axis: self.neighbours[axis.dim] if axis.step == 1 else 0)
        )

    def emit(self) -> None:
        """The whole chain."""
        for region in regions(self.program, rows_fit=self._rows_fit()):
            self.region(region)

    def _rows_fit(self) -> bool:
        """Whether SBUF holds the tiles of whole rows."""
        held = most_held(self.program, self.shortcuts, self.slots, SHARED_BYTES)
        return held <= room_of(self.builder.core)

    def region(self, region: Region) -> None:
        """One box, with the loops around it."""
        position = dict.fromkeys(range(len(self.program.domain)), ZERO)
        for dim, start in region.base:
            position[dim] += start
        same = self.shared(region, position)
        self.loops(region.loops, position, lambda at: self._box(region, at, same))

    def shared(self, region: Region, position: dict[int, Affine]) -> dict[Reference, Access]:
        """Inputs that all boxes of a region share, loaded before its loops."""
        loops = {axis.dim for axis in region.loops}
        if not loops or len(region.chunks) != 1 or region.chunks[0].loops:
            return {}
        free = self.inwards((*region.free, *region.chunks[0].free))
        values = Values(self, Box(region.partitions, free, position), {})
        shared: dict[Reference, Access] = {}
        room = SHARED_BYTES
        for number, source in enumerate(self.program.inputs):
            if source.buffer is None or any(source.strides[dim] for dim in loops):
                continue
            sizes = [axis.size for axis in free if axis.dim in source.axes]
            room -= math.prod(sizes) * bytes_of(storage_of(source.dtype).dtype)
            if room >= 0:
                shared[Reference(number, is_input=True)] = values.load(number)
        return shared

    def loops(self, loops: Sequence[Axis], position: dict[int, Affine], body: Any) -> None:
        if not loops:
            body(position)
            return
        axis, *inner = loops
        with self.builder.loop(axis.size) as variable:
            at = {**position, axis.dim: position[axis.dim] + variable * axis.step}
            self.loops(inner, at, body)

    def _box(
        self, region: Region, position: dict[int, Affine], same: Mapping[Reference, Access]
    ) -> None:
        if len(region.chunks) == 1 and not region.chunks[0].loops:
            free = self.inwards((*region.free, *region.chunks[0].free))
            self.box(Box(region.partitions, free, position), same)
        else:
            self._chunked(region, position)

    def box(
        self,
        box: Box,
        given: Mapping[Reference, Access] | None = None,
        wanted: Reference | None = None,
    ) -> Access | None:
        """All values of a box; `given` ones lie in tiles already. The tile of a `wanted` one."""
        values = self.values(box, given or {})
        return None if wanted is None else values.in_sbuf(wanted)

    def values(self, box: Box, given: Mapping[Reference, Access]) -> Values:
        """The same, with the tiles of all values."""
        values = Values(self, box, dict(given), is_whole=True)
        for number in range(len(self.program.nodes)):
            if number not in self.shortcuts.absorbed:
                values.node(number)
        for output in self.program.outputs:
            values.store(output)
        return values

    def _chunked(self, region: Region, position: dict[int, Affine]) -> None:
        """Reductions piece by piece into accumulators, then what follows from them.

        What follows and varies along the row goes through all pieces again.
        """
        program, level = self.program, levels(self.program)
        outer = Values(self, Box(region.partitions, self.inwards(region.free), position), {})
        for sweep in range(max(level, default=0) + 1):
            reductions = [
                number
                for number, node in enumerate(program.nodes)
                if node.reduced and level[number] == sweep
            ]
            outputs = [
                output
                for output in program.outputs
                if program.axes_of(output.value) & program.reduced
                and sweep == (0 if output.value.is_input else level[output.value.number])
            ]
            for number, node in enumerate(program.nodes):
                is_row = not node.reduced and not node.axes & program.reduced
                if sweep and is_row and level[number] == sweep:
                    outer.node_of(Reference(number))
            if reductions or outputs:
                self._sweep(region, position, outer, reductions, outputs)
        for output in program.outputs:
            if not program.axes_of(output.value) & program.reduced:
                outer.node_of(output.value)
                outer.store(output)

    def _sweep(
        self,
        region: Region,
        position: dict[int, Affine],
        outer: Values,
        reductions: Sequence[int],
        outputs: Sequence[Output],
    ) -> None:
        """One walk over all pieces; `outer` holds what walks before it have reduced."""
        program = self.program
        totals = {number: outer.accumulator(number) for number in reductions}
        for chunk in region.chunks:
            start = dict(position)
            for dim, first in chunk.base:
                start[dim] += first

            def body(at: dict[int, Affine], chunk: Chunk = chunk) -> None:
                free = self.inwards((*region.free, *chunk.free))
                box = Box(region.partitions, free, at)
                inner = Values(self, box, dict(outer.known))
                for number in needed(program, reductions, outer.known):
                    if number not in self.shortcuts.absorbed:
                        inner.node(number)
                for number in reductions:
                    outer.accumulate(number, totals[number], inner)
                for output in outputs:
                    inner.node_of(output.value)
                    inner.store(output)

            self.loops(chunk.loops, start, body)
        outer.known.update({Reference(n): total for n, total in totals.items()})


def needed(
    program: TileProgram, wanted: Sequence[int], known: Collection[Reference] = ()
) -> list[int]:
    """Nodes that the operands of `wanted` nodes need, in order; not the wanted themselves."""
    nodes: set[int] = set()
    todo = [operand for n in wanted for operand in program.nodes[n].operands]
    while todo:
        operand = todo.pop()
        if not isinstance(operand, Reference) or operand.is_input or operand in known:
            continue
        if operand.number not in nodes:
            nodes.add(operand.number)
            todo += program.nodes[operand.number].operands
    return sorted(nodes)


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


@dataclass
class Values:
    """The tiles of one box."""

    emitter: TileEmitter
    box: Box
    known: dict[Reference, Access]
    #: Whether all of every row is in the box.
    is_whole: bool = False
    #: Elements of rows that stay in PSUM.
    in_psum: int = 0

    @property
    def program(self) -> TileProgram:
        return self.emitter.program

    @property
    def before(self) -> Mapping[int, int]:
        return self.emitter.shortcuts.before

    @property
    def version(self) -> int:
        return self.emitter.builder.core.version

    def seen(self, operand: Reference | Immediate, axes: frozenset[int]) -> Scalar:
        return self.operand(operand, [axis for axis in self.box.free if axis.dim in axes])

    def tile(self, axes: frozenset[int], dtype: ElementType, name: str, slots: int = 1) -> Access:
        """A new tile for a value that varies along `axes`, seen with its own axes only."""
        own = [axis for axis in self.box.free if axis.dim in axes]
        sizes = tuple(axis.size for axis in own)
        slot = self._slot() if slots > 1 else ZERO
        buffer = self.emitter.builder.tile(
            (self.box.count, *sizes), dtype, slots=1 if slot == ZERO else slots, name=name
        )
        return Access(
            buffer=buffer,
            partitions=self.box.count,
            dims=tile_access(buffer, sizes, _dense(sizes)).dims,
            slot=slot,
        )

    def _slot(self) -> Affine:
        """The innermost loop variables decide which of two tiles is used."""
        variables = sorted({name for at in self.box.position.values() for name in at.variables})
        return Affine(0, tuple((name, 1) for name in variables))

    def broadcast(self, access: Access, axes: frozenset[int], over: Sequence[Axis]) -> Access:
        """An access to a tile of a value along `axes`, walked over all of `over`."""
        own = [axis for axis in self.box.free if axis.dim in axes]
        strides = dict(zip(own, _dense([axis.size for axis in own]), strict=True))
        base = access.buffer
        walked = tile_access(
            base,
            [axis.size for axis in over],
            [strides.get(axis, 0) for axis in over],
            partitions=access.partitions,
        )
        return replace(access, dims=walked.dims)

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

    def load(self, number: int) -> Access:
        source = self.program.inputs[number]
        assert source.buffer is not None
        dtype = storage_of(source.dtype).dtype
        own = [axis for axis in self.box.free if axis.dim in source.axes]
        is_row = not any(source.strides[axis.dim] for axis in self.box.partitions)
        if self.emitter.spreads and is_row and is_spread(self.box.count, size_of(own), dtype):
            row = self._hbm(source.buffer, source.strides, source.offset, own)
            return self._spread(row, source, dtype)
        dst = self.tile(source.axes, dtype, "in", self.emitter.slots)
        src = self._hbm(source.buffer, source.strides, source.offset, [*self.box.partitions, *own])
        self.emitter.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def _spread(self, row: Access, source: Input, dtype: ElementType) -> Access:
        """A row of memory in all partitions, by the Tensor engine."""
        builder = self.emitter.builder
        total = spread(builder, row, self.box.count)
        src = tile_access(total, [row.elements], [1])
        if stays_in_psum(builder, row.elements, self.in_psum):
            self.in_psum += row.elements
            sizes = [axis.size for axis in self.box.free if axis.dim in source.axes]
            return replace(src, dims=tile_access(total, sizes, _dense(sizes)).dims)
        dst = self.tile(source.axes, dtype, "in")
        builder.emit(TensorCopy(dst=replace(dst, dims=src.dims), src=src))
        return dst

    def _hbm(
        self, buffer: int, strides: Sequence[int], offset: int, axes: Sequence[Axis]
    ) -> Access:
        start = Affine(offset)
        for dim, at in self.box.position.items():
            start = start + at * strides[dim]
        return walk(
            self.emitter.buffers[buffer],
            start,
            [axis.size for axis in axes],
            [strides[axis.dim] * axis.step for axis in axes],
        )

    def node(self, number: int) -> None:
        """Writes the instructions of a node, after those of its operands."""
        reference, cuts = Reference(number), self.emitter.shortcuts
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
        slots = self.emitter.slots if self._is_stored(written) else 1
        name = node.name.replace(".", "_")
        dst = self.tile(node.axes, storage_of(dtype).dtype, name, slots)
        if node.reduced:
            if number not in cuts.squares or not self._sum_of_squares(number, dst):
                self._reduce(node, dst)
        elif not self._at_once(number, dst):
            self._elementwise(node, dst)
        self.known[reference] = self.known[written] = dst

    def _written(self, number: int) -> int:
        """The node that the instruction of a node writes: itself, or its conversion."""
        cuts = self.emitter.shortcuts
        if number in cuts.beside and self._is_exponential(number) and self._adds_up(number):
            return cuts.beside[number]
        return cuts.narrowed.get(number, number)

    def _at_once(self, number: int, dst: Access) -> bool:
        """Writes an operation and what is before it; whether there is such an instruction."""
        if number in self.emitter.shortcuts.differences:
            return self._exponential(number, dst)
        if number in self.emitter.shortcuts.maxima and self._selected(number, dst):
            return True
        instruction = composed(self, number, dst)
        if instruction is not None:
            self.emitter.builder.emit(instruction)
            return True
        return self._scaled_rows(self.program.nodes[number], dst)

    def _selected(self, number: int, dst: Access) -> bool:
        """A selection with its maximum in one instruction; whether it can be."""
        greatest = self.emitter.shortcuts.maxima[number]
        node = self.program.nodes[greatest]
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if not self.is_whole or not free <= set(node.reduced):
            return False
        instruction = elementwise.selection(self._work(self.program.nodes[number], dst))
        if instruction is None or not _reads_psum(instruction):
            return False
        slots = self.emitter.slots if self._is_stored(Reference(greatest)) else 1
        greatest_of_rows = self.tile(node.axes, FLOAT32, "top", slots)
        command = ReduceCommand.RESET_REDUCE
        self.emitter.builder.emit(
            replace(instruction, reduce_res=greatest_of_rows, reduce_cmd=command)
        )
        self.known[Reference(greatest)] = greatest_of_rows
        return True

    def _is_exponential(self, number: int) -> bool:
        """Whether the Scalar engine takes the exponential of a difference: from a row value."""
        cuts, program = self.emitter.shortcuts, self.program
        _, shift = program.nodes[cuts.differences[number]].operands
        assert isinstance(shift, Reference)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if program.axes_of(shift) & free or not free <= program.nodes[number].axes:
            return False
        return self.node_of(shift).element_type == FLOAT32

    def _adds_up(self, number: int) -> bool:
        """Whether the Scalar engine adds an exponential up while it writes it."""
        total = self.emitter.shortcuts.sums.get(number)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        return (
            total is not None
            and Reference(total) not in self.known
            and self.is_whole
            and free <= set(self.program.nodes[total].reduced)
        )

    def _exponential(self, number: int, dst: Access) -> bool:
        """exp(x - m) of a row value m, with its sum, in one instruction; whether it can be."""
        cuts, program = self.emitter.shortcuts, self.program
        data, shift = program.nodes[cuts.differences[number]].operands
        assert isinstance(data, Reference)
        assert isinstance(shift, Reference)
        if not self._is_exponential(number):
            return False
        axes, row = program.nodes[number].axes, self.node_of(shift)
        bias = self.tile(program.axes_of(shift), FLOAT32, "bias")
        minus = Immediate(-1.0)
        builder = self.emitter.builder
        source = self.operand(data, [axis for axis in self.box.free if axis.dim in axes])
        assert isinstance(source, Access)
        builder.emit(TensorScalar(dst=bias, data=row, op0=AluOp.MULTIPLY, operand0=minus))
        total = cuts.sums.get(number)
        if total is None or not self._adds_up(number):
            builder.emit(Activate(dst=dst, op=Activation.EXP, data=source, bias=bias))
            return True
        slots = self.emitter.slots if self._is_stored(Reference(total)) else 1
        sum_of_rows = self.tile(program.nodes[total].axes, FLOAT32, "sum", slots)
        builder.emit(
            ActivateReduce(
                dst=dst, op=Activation.EXP, data=source, bias=bias, reduce_res=sum_of_rows
            )
        )
        self.known[Reference(total)] = sum_of_rows
        return True

    def _sum_of_squares(self, number: int, dst: Access) -> bool:
        """Squares and their sum in one instruction; whether it can be."""
        square = self.program.nodes[self.emitter.shortcuts.squares[number]]
        data = square.operands[0]
        assert isinstance(data, Reference)
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        reduced = set(self.program.nodes[number].reduced)
        if not self.is_whole or not free <= reduced & square.axes:
            return False
        source = self.operand(data, [axis for axis in self.box.free if axis.dim in square.axes])
        assert isinstance(source, Access)
        squares = self.tile(square.axes, FLOAT32, "squares")
        op = Activation.SQUARE
        self.emitter.builder.emit(ActivateReduce(dst=squares, op=op, data=source, reduce_res=dst))
        return True

    def _scaled_rows(self, node: Node, dst: Access) -> bool:
        """One number per row times the row on the Scalar engine, which norms leave idle."""
        if node.name != "multiply" or node.operand_dtype.name != "float32":
            return False
        free = {axis.dim for axis in self.box.free if axis.size > 1}
        if not self.emitter.shortcuts.squares or not self.is_whole or not free <= node.axes:
            return False
        for data, row in (node.operands, node.operands[::-1]):
            if not isinstance(data, Reference) or not isinstance(row, Reference):
                return False
            if self.program.axes_of(row) & free or not free <= self.program.axes_of(data):
                continue
            scale = self.node_of(row)
            source = self.operand(data, [axis for axis in self.box.free if axis.dim in node.axes])
            if scale.element_type != FLOAT32 or not isinstance(source, Access):
                return False
            op = Activation.COPY
            self.emitter.builder.emit(Activate(dst=dst, op=op, data=source, scale=scale))
            return True
        return False

    def _elementwise(self, node: Node, dst: Access) -> None:
        """The instructions of an operation; PSUM is read if all of them can."""
        builder = self.emitter.builder
        body, tiles = self._attempted(node, dst)
        if not all(map(_reads_psum, body)):
            builder.forget(tiles)
            for operand in node.operands:
                if isinstance(operand, Reference):
                    self.in_sbuf(operand)
            body, _ = self._attempted(node, dst)
        for instruction in body:
            builder.emit(instruction)

    def _is_stored(self, reference: Reference) -> bool:
        return any(output.value == reference for output in self.program.outputs)

    def _attempted(self, node: Node, dst: Access) -> tuple[list[Instruction], int]:
        """Instructions that are not part of the kernel yet, and how many tiles there were."""
        work, builder = self._work(node, dst), self.emitter.builder
        tiles = builder.tile_count
        with builder.block() as body:
            elementwise.emit(work)
        return [
            node_of_body for node_of_body in body if isinstance(node_of_body, Instruction)
        ], tiles

    def _work(self, node: Node, dst: Access) -> elementwise.Work:
        over = [axis for axis in self.box.free if axis.dim in node.axes]
        return elementwise.Work(
            builder=self.emitter.builder,
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
            slots = self.emitter.slots if self._is_stored(reference) else 1
            copied = self.tile(program.axes_of(reference), dtype, "out", slots)
            over = [axis for axis in self.box.free if axis.dim in program.axes_of(reference)]
            src = self.broadcast(access, program.axes_of(reference), over)
            self.emitter.builder.emit(TensorCopy(dst=copied, src=src))
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
        self.emitter.builder.emit(
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
                builder=self.emitter.builder,
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
        elementwise.fill(self.emitter.builder, total, init)
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
        dst = self._hbm(output.buffer, output.strides, output.offset, axes)
        builder = self.emitter.builder
        queue = builder.queue(1)  # not that of loads, which do not wait for results
        builder.emit(DmaCopy(dst=dst, src=value, engine=STORES, queue=queue))


def is_from_identity(node: Node) -> bool:
    """Whether a reduction begins with what changes nothing."""
    name, init = node.name.removeprefix("reduce_"), node.operands[-1]
    return isinstance(init, Immediate) and float(init.value) == IDENTITIES[name]


def _reads_psum(instruction: Instruction) -> bool:
    """Whether an instruction may read what it reads of PSUM: one operand, not on GpSimd."""
    reads = [read for read in instruction.reads() if isinstance(read, Access)]
    count = sum(read.memory is Memory.PSUM for read in reads)
    return not count or (count == 1 and instruction.engine in (Engine.VECTOR, Engine.SCALAR))


def size_of(axes: Sequence[Axis]) -> int:
    """Elements of all axes."""
    return math.prod(axis.size for axis in axes)


def _dense(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
