"""Products on the Tensor engine: one writer for `dot_general` and `convolution`.

Dimensions are those of the result, then contracted ones. Each operand runs along some of them.
Panels of operands lie in SBUF with contracted dimensions on partitions; sums stay in PSUM until
they are complete, and the operations that follow read them there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Box, size_of
from neuronjax.lower.chain.positions import Position, nest, origin, shifted
from neuronjax.lower.chain.tile_program import Reference, TileProgram
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.product.blocking import (
    WIDTH,
    Level,
    Schedule,
    Side,
    schedule,
)
from neuronjax.lower.product.loading import Loader
from neuronjax.lower.product.panels import Block, Operand, Panel, blocks, extents, tiles
from neuronjax.lower.product.steps import Step, is_turned, steps
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS, Engine
from neuronjax.program.affine import ZERO, Affine, First, Flag, Last
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Immediate
from neuronjax.program.operators import PerformanceMode
from neuronjax.program.rules.access import MAX_DIMS
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import Memset, TensorCopy

_ON_VECTOR = frozenset({"add", "subtract", "multiply", "maximum", "minimum"})
"""Operations of the engine that copies sums."""
_COPIED = (FLOAT32, BFLOAT16, FLOAT16)
"""Types that a copy rounds sums to."""


Choose = Callable[[KernelBuilder, Position], tuple[Operand, Operand]]
"""Loads addresses into registers; both operands of a product, as they lie at a position."""


@dataclass
class ProductWriter(Loader):
    """Writes the kernel of a product."""

    left: Operand
    right: Operand
    emitter: TileEmitter
    result: np.dtype
    #: Part of the room for panels that they are to take at most.
    share: float = 1.0
    #: The operands of the product at a place of the batch, where indices choose parts of them.
    choose: Choose | None = None
    _plan: Schedule | None = None
    #: Whether panels are loaded through transposes, which take banks of PSUM.
    _turns: bool = False
    #: Inputs of what follows that are loaded already, and whether they are loaded tile by tile.
    _shares_late: bool = False
    _shared: dict[int, Panel] = field(default_factory=dict)
    #: A row that is added to sums in PSUM, and a column of ones.
    _added: tuple[Panel, Buffer] | None = None

    def steps(self) -> list[Step]:
        """The contracted elements, cut up so that two parts of both operands have room."""
        most_taps, budget = self.builder.tuning.panel_taps, self._budget()
        while True:
            cut = steps(self.product, self.left, self.right, most_taps, self.builder.tuning)
            pairs = ((self.left, self.product.left), (self.right, self.product.right))
            needed = sum(self._part(operand, dims, cut, WIDTH) for operand, dims in pairs)
            if most_taps == 1 or 2 * needed <= budget:
                return cut
            most_taps //= 2

    def _part(self, operand: Operand, dims: tuple[int, ...], steps: list[Step], width: int) -> int:
        """Bytes per partition of the largest part of a panel that is loaded for one step."""
        alone = [replace(step, loops=(), base=()) for step in steps]
        parts = [block.tile for block in blocks(self.product.axes(dims), width)]
        return max(self.panel_bytes(operand, tile, step) for tile in parts for step in alone)

    def write(self) -> None:
        """The kernel."""
        product = self.product
        steps = self.steps()
        left = self._side(self.left, product.left, steps)
        right = self._side(self.right, product.right, steps)
        self._turns = left.is_turned or right.is_turned
        passes = 0.5 if self._takes_pairs else 1
        if FLOAT32 in (self.left.dtype, self.right.dtype):
            passes = 4
        runs = self._runs()
        depth = product.count(product.contracted)
        alone = all(batch.size < 2 for batch in product.batches)
        cores = self.builder.cores if alone else 1
        rates, tuning = self.builder.rates, self.builder.tuning
        self._plan = schedule(
            left, right, depth, passes, runs, self._budget(), rates, tuning, cores
        )
        position = origin(len(product.sizes))
        nest(self.builder, product.batches, position, functools.partial(self._of_batch, steps))

    def _budget(self) -> int:
        """Bytes of a partition for panels: what tiles of results and rows leave."""
        usable = self.builder.core.sbuf.usable_partition_bytes
        program = self.emitter.program
        dtypes = [source.dtype for source in (*program.inputs, *program.inputs)]
        dtypes += [node.dtype for node in program.nodes]
        nbytes = sum(bytes_of(storage_of(dtype).dtype) for dtype in dtypes)
        room = usable - min(usable // 3, nbytes * MOVING_COLUMNS) - self.builder.tuning.chunk_bytes
        return int(room * self.share)

    def _side(self, operand: Operand, dims: tuple[int, ...], steps: list[Step]) -> Side:
        axes = self.product.axes(dims)

        @functools.cache
        def panel(width: int) -> int:
            parts = [block.tile for block in blocks(axes, width)]
            return max(
                sum(self.panel_bytes(operand, tile, step) for step in steps) for tile in parts
            )

        stored = bytes_of(operand.view.buffer.dtype)
        turned = any(is_turned(operand, step, axes) for step in steps)
        part = functools.partial(self._part, operand, dims, steps)

        @functools.cache
        def block(width: int) -> int:
            return max(block.size for block in blocks(axes, width))

        @functools.cache
        def density(width: int) -> float:
            parts = (block.tile for block in blocks(axes, min(width, WIDTH)))
            largest = max(parts, key=size_of)
            loaded, depth = 0, 0
            for step in steps:
                part = self.panel_bytes(operand, largest, replace(step, loops=()))
                loaded += part * size_of(step.loops)
                depth += size_of((*step.inner, *step.loops))
            return loaded / (size_of(largest) * depth * bytes_of(operand.dtype))

        run = axes[-1].size if axes and abs(operand.strides[axes[-1].dim]) == 1 else 1
        is_late = self.choose is not None and not self.builder.core.descriptor_engines
        return Side(
            self.product.count(dims), stored, turned, panel, part, block, density, run, is_late
        )

    def _runs(self) -> tuple[int, int]:
        """Runs of stored results if left or right dimensions lie on partitions."""
        program = self.emitter.program
        total = math.prod(program.domain)
        counts = []
        for dims in (self.product.right, self.product.left):
            runs = 0
            axes = [axis for axis in self.product.axes(dims) if axis.dim < len(program.domain)]
            for output in program.outputs:
                contiguous = bool(axes) and output.strides[axes[-1].dim] == 1
                runs += total // min(MOVING_COLUMNS, axes[-1].size) if contiguous else total
            counts.append(runs)
        return counts[0], counts[1]

    def _of_batch(self, steps: list[Step], position: Position) -> None:
        """Writes one product of a batch."""
        plan, product = self._plan, self.product
        assert plan is not None
        if self.choose is not None:
            self.left, self.right = self.choose(self.builder, position)
        sides = [(self.left, product.left), (self.right, product.right)]
        if not plan.left_is_stationary:
            sides.reverse()
        still, moving = sides
        outer, inner = (still, moving) if plan.outer_is_stationary else (moving, still)
        inner_axes = product.axes(inner[1])
        self._shared = {}
        columns = product.axes(moving[1])
        self._added = self._addend(product.count(still[1]), columns, position)
        self._shares_late = size_of(columns) > self.builder.tuning.panel_columns
        if not self._shares_late:
            rows = min(PARTITIONS, product.count(still[1]))
            self._share(rows, columns, still[1], position)
        known: dict[int, list[Panel]] = {}
        if plan.inner_level is Level.ONCE:
            known[id(inner)] = self.panels(inner[0], inner_axes, steps, position, 1)
        for block in blocks(product.axes(outer[1]), plan.outer_width):

            def outside(at: dict[int, Affine], block: Block = block) -> None:
                held = dict(known)
                if plan.outer_level is Level.OUTER:
                    held[id(outer)] = self.panels(outer[0], block.tile, steps, at, plan.outer_slots)
                self._inside(plan, block, (still, moving, outer, inner), steps, at, held)

            nest(self.builder, block.loops, shifted(position, block.base), outside)

    def _inside(
        self,
        plan: Schedule,
        block: Block,
        sides: tuple[tuple[Operand, tuple[int, ...]], ...],
        steps: list[Step],
        position: Position,
        known: dict[int, list[Panel]],
    ) -> None:
        """All of the inner operand against one panel of the outer one."""
        still, moving, _, inner = sides
        for column in blocks(self.product.axes(inner[1]), plan.inner_width):

            def within(at: dict[int, Affine], column: Block = column) -> None:
                held = dict(known)
                if plan.inner_level is Level.INNER:
                    held[id(inner)] = self.panels(inner[0], column.tile, steps, at)
                for sub in blocks(block.tile, WIDTH):

                    def square(here: dict[int, Affine], sub: Block = sub) -> None:
                        pair = (sub.tile, column.tile)
                        a, b = pair if plan.outer_is_stationary else (pair[1], pair[0])
                        panels = (held.get(id(still)), held.get(id(moving)))
                        self._square((still[0], a), (moving[0], b), panels, steps, here)

                    nest(self.builder, sub.loops, shifted(at, sub.base), square)

            nest(self.builder, column.loops, shifted(position, column.base), within)

    def _square(
        self,
        still: tuple[Operand, tuple[Axis, ...]],
        moving: tuple[Operand, tuple[Axis, ...]],
        panels: tuple[list[Panel] | None, list[Panel] | None],
        steps: list[Step],
        position: Position,
    ) -> None:
        """Sums over all contracted elements of some columns of both operands."""
        rows = list(tiles(still[1], PARTITIONS))
        columns = list(tiles(moving[1], MOVING_COLUMNS))
        banks = self.builder.core.psum.banks - (4 if self._turns else 0)
        slot = self.slot()
        slots = 2 if slot != ZERO and 2 * len(rows) * len(columns) <= banks else 1
        psum = functools.partial(self.psum, dtype=FLOAT32, slots=slots, name="acc")
        sums = [[psum(size_of(row), size_of(column)) for column, _ in columns] for row, _ in rows]
        at = slot if slots > 1 else ZERO
        for number, step in enumerate(steps):
            ends = (number == 0, number == len(steps) - 1 and self._added is None)

            def part(here: dict[int, Affine], number: int = number, ends: tuple[bool, bool] = ends,
                     step: Step = step) -> None:  # fmt: skip
                pair = []
                for (operand, free), held in zip((still, moving), panels, strict=True):
                    if held is not None:
                        pair.append(held[number])
                        continue
                    alone = replace(step, loops=(), base=())
                    sub = self.panel_bytes(operand, free, alone)
                    slots = self.deep(size_of(step.partitions), sub)
                    panel = self.panel(operand, free, alone, here, slots)
                    self.load(panel, (*step.inner, *free), step, free, here)
                    pair.append(panel)
                for (row, down), accumulators in zip(rows, sums, strict=True):
                    for (column, right), total in zip(columns, accumulators, strict=True):
                        there = shifted(shifted(here, tuple(down.items())), tuple(right.items()))
                        dst = tile_access(total, [size_of(column)], [1], slot=at)
                        tile = (row, column)
                        self.accumulate(step, pair, tile, position, dst, ends, there)

            nest(self.builder, step.loops, shifted(position, step.base), part)
        for index, (column, right) in enumerate(columns):
            beside = shifted(position, tuple(right.items()))
            if self._shares_late:
                self._shared = {}
                dims = [axis.dim for axis in rows[0][0]]
                self._share(size_of(rows[0][0]), column, dims, beside)
            for (row, down), accumulators in zip(rows, sums, strict=True):
                there = shifted(beside, tuple(down.items()))
                dst = tile_access(accumulators[index], [size_of(column)], [1], slot=at)
                self._add_row(column, there, dst)
                self.finish(row, column, there, dst)

    def accumulate(
        self,
        step: Step,
        pair: Sequence[Panel],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        around: Position,
        dst: Access,
        ends: tuple[bool, bool],
        position: Position,
    ) -> None:
        """The products of one step for one tile of sums."""
        inner, both = self._paired(step, max(map(len, tile)))

        def product(at: dict[int, Affine]) -> None:
            names = tuple(
                name
                for dim in self.product.contracted
                for name in at[dim].variables
                if name not in around[dim].variables
            )
            start = flag(First, names) if ends[0] else False
            stop = flag(Last, names) if ends[1] else False
            self.builder.emit(self.multiply(dst, pair, tile, at, both, start, stop))

        nest(self.builder, inner, position, product)

    def multiply(
        self,
        dst: Access,
        pair: Sequence[Panel],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        at: Position,
        both: Axis | None,
        start: Flag,
        stop: Flag,
    ) -> Instruction:
        """The product of a stationary and a moving panel at a position."""
        return Matmul(
            dst=dst,
            stationary=pair[0].access(tile[0], at, both),
            moving=pair[1].access(tile[1], at, both),
            perf_mode=PerformanceMode.NONE if both is None else PerformanceMode.DOUBLE_ROW,
            start=start,
            stop=stop,
        )

    @property
    def _takes_pairs(self) -> bool:
        """Whether each row of the array takes two contracted elements at a time: of FP8, on chips
        that have double rows."""
        rates = self.builder.core.tensor.rates
        return all(
            operand.dtype.storage_bits == 8 and rates.get(operand.dtype.name, 1) > 1
            for operand in (self.left, self.right)
        )

    def _paired(self, step: Step, dims: int) -> tuple[tuple[Axis, ...], Axis | None]:
        """The loops of a step within a panel, and what a double row takes together, of an axis of
        even size; `dims` are those of an access without it."""
        for number, axis in reversed([*enumerate(step.inner)]):
            if self._takes_pairs and axis.size % 2 == 0 and dims < MAX_DIMS:
                half = Axis(axis.dim, axis.size // 2, 2 * axis.step)
                loops = (*step.inner[:number], half, *step.inner[number + 1 :])
                pair = Axis(axis.dim, 2, axis.step)
                return tuple(loop for loop in loops if loop.size > 1), pair
        return step.inner, None

    def _addend(
        self, rows: int, columns: Sequence[Axis], at: Position
    ) -> tuple[Panel, Buffer] | None:
        """The row that what follows adds first, if the Tensor engine adds it to few sums."""
        number = _added_row(self.emitter.program, columns)
        if number is None or rows > self.builder.tuning.added_rows or not self.is_read_in_psum():
            return None
        operand, own = self._row_operand(number, columns)
        nothing = Step((), (), (), ())
        panel = self.panel(operand, own, nothing, at, 2 if self.builder.around else 1)
        self.load(panel, own, nothing, own, at)
        ones = self.builder.tile((1, min(rows, PARTITIONS)), FLOAT32, name="ones")
        unit = tile_access(ones, [ones.elements], [1])
        self.builder.emit(Memset(dst=unit, value=Immediate(1.0), engine=Engine.GPSIMD))
        return panel, ones

    def _add_row(self, column: tuple[Axis, ...], at: Position, total: Access) -> None:
        """Adds the row to complete sums: a product with ones, the last one of all."""
        if self._added is None:
            return
        panel, ones = self._added
        stationary = tile_access(ones, [total.partitions], [1])
        moving = panel.access(column, at)
        self.builder.emit(Matmul(dst=total, stationary=stationary, moving=moving, start=False))

    def _row_operand(self, number: int, columns: Sequence[Axis]) -> tuple[Operand, list[Axis]]:
        """An input of what follows as an operand, and the columns that it varies along."""
        source = self.emitter.program.inputs[number]
        assert source.buffer is not None
        dims = tuple(range(len(self.product.sizes)))
        operand = Operand(
            View(self.emitter.buffers[source.buffer], (), (), source.offset),
            (*source.strides, *(0,) * (len(dims) - len(source.strides))),
            dims,
            storage_of(source.dtype).dtype,
        )
        return operand, [axis for axis in columns if axis.dim in source.axes]

    def _share(self, rows: int, axes: Sequence[Axis], dims: Sequence[int], at: Position) -> None:
        """Loads what follows needs and is the same for all rows, such as a bias."""
        program = self.emitter.program
        free, close = {axis.dim for axis in axes}, self.builder.tuning.close_elements
        for number, source in enumerate(program.inputs):
            if source.buffer is None or not source.axes or not source.axes <= free:
                continue
            if self._added is not None and number == _added_row(program, axes):
                continue
            operand, own = self._row_operand(number, axes)
            step = Step(tuple(Axis(dim, rows) for dim in dims[:1] if rows > 1), (), (), ())
            row_extents = extents(operand, own, frozenset(), close, turned=False)
            if [extent.memory for extent in row_extents] == [axis.dim for axis in own]:
                panel = self.panel(operand, own, step, at, 2 if self.builder.around else 1)
                self.load(panel, own, step, own, at)
                self._shared[number] = panel

    def _given(
        self, row: tuple[Axis, ...], column: tuple[Axis, ...], position: Position
    ) -> dict[Reference, Access]:
        parts_by_value = {}
        for number, panel in self._shared.items():
            axes = self.emitter.program.inputs[number].axes
            access = panel.access([axis for axis in column if axis.dim in axes], position)
            parts_by_value[Reference(number, is_input=True)] = replace(
                access, partitions=size_of(row)
            )
        return parts_by_value

    def finish(
        self,
        row: tuple[Axis, ...],
        column: tuple[Axis, ...],
        position: Position,
        total: Access,
        known: Mapping[Reference, Access] = MappingProxyType({}),
    ) -> None:
        """Writes what follows from a tile of sums, and stores it; `known` inputs are in tiles."""
        program = self.emitter.program
        box = Box(row, column, {d: position[d] for d in range(len(program.domain))})
        given = total if self.is_read_in_psum() else self.evicted(row, column, total)
        shared = self._given(row, column, position)
        sums = Reference(0, is_input=self._added is None)
        self.emitter.box(box, {sums: given, **shared, **known})

    def is_read_in_psum(self) -> bool:
        """Whether what follows may read sums where they are: few do, and nobody stores them."""
        program, sums = self.emitter.program, Reference(0, is_input=True)
        users = sum(sums in node.operands for node in program.nodes)
        stored = any(output.value == sums for output in program.outputs)
        is_read_by_few = not stored and users <= self.builder.tuning.sum_readers
        return is_read_by_few and storage_of(self.result).dtype == FLOAT32

    def evicted(self, row: tuple[Axis, ...], column: tuple[Axis, ...], total: Access) -> Access:
        """Sums in SBUF, in the type of the result."""
        dtype = storage_of(self.result).dtype
        given = self._out(row, column, dtype)
        if dtype in _COPIED:
            self.builder.emit(TensorCopy(dst=given, src=total))
            return given
        wide = self._out(row, column, FLOAT32)
        self.builder.emit(TensorCopy(dst=wide, src=total))
        work = elementwise.Work(
            builder=self.builder,
            name="convert",
            attributes={},
            dst=given,
            srcs=(wide,),
            operand=np.dtype(np.float32),
            result=self.result,
        )
        elementwise.emit(work)
        return given

    def _leaves_vector(self) -> bool:
        """Whether anything but the engine that writes sums to SBUF reads them there."""
        program, sums = self.emitter.program, Reference(0, is_input=True)
        readers = [node.name for node in program.nodes if sums in node.operands]
        stored = any(output.value == sums for output in program.outputs)
        return stored or not _ON_VECTOR.issuperset(readers)

    def _out(self, row: tuple[Axis, ...], column: tuple[Axis, ...], dtype: ElementType) -> Access:
        slot = self.slot() if self._leaves_vector() else ZERO
        slots = 1 if slot == ZERO else 2
        tile = self.builder.tile((size_of(row), size_of(column)), dtype, slots=slots, name="out")
        return tile_access(tile, [size_of(column)], [1], slot=slot)


def _added_row(program: TileProgram, columns: Sequence[Axis]) -> int | None:
    """The input that the first operation, which alone reads the sums, adds to all their rows."""
    sums = Reference(0, is_input=True)
    users = [node for node in program.nodes if sums in node.operands]
    if len(users) != 1 or users[0] is not program.nodes[0] or users[0].name != "add":
        return None
    (other,) = [operand for operand in users[0].operands if operand != sums] or (sums,)
    if not isinstance(other, Reference) or other == sums or not other.is_input:
        return None
    source, dims = program.inputs[other.number], {axis.dim for axis in columns}
    is_row = source.buffer is not None and source.dtype.name == "float32" and source.axes <= dims
    return other.number if is_row and source.axes else None


def flag(kind: type[First] | type[Last], names: tuple[str, ...]) -> Flag:
    """A flag that holds in the first, or the last, iteration of all loops of these variables."""
    return kind(names) if names else True
