"""Products on the Tensor engine: one writer for `dot_general` and `convolution`.

Dimensions are those of the result, then contracted ones. Each operand runs along some of them.
Panels of operands lie in SBUF with contracted dimensions on partitions; sums stay in PSUM until
they are complete, and the operations that follow read them there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower import elementwise
from neuronjax.lower.builder import PARTITIONS, KernelBuilder, tile_access
from neuronjax.lower.families.panels import (
    Block,
    Extent,
    Operand,
    Panel,
    Position,
    blocks,
    extents,
    moved,
    scaled,
    tiles,
)
from neuronjax.lower.families.schedule import (
    CHUNK_BYTES,
    MOVING,
    STATIONARY,
    WIDTH,
    Level,
    Schedule,
    Side,
    schedule,
)
from neuronjax.lower.storage import storage_of
from neuronjax.lower.tile_program import Reference
from neuronjax.lower.tiles import Axis, Box, TileEmitter
from neuronjax.lower.view import View
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import ZERO, Affine, First, Flag, Last, affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, ElementType, bytes_of
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.tensor_engine import Matmul, TensorTranspose
from neuronjax.program.vector_engine import TensorCopy

NARROW = 16
"""Columns of an operand that are loaded where they must lie, whatever that costs."""
RUN_BYTES = 512
"""Contiguous bytes from which on a transfer is efficient."""
SHARED = 4096
"""Most columns of what all rows share that are loaded at once."""
IN_FLIGHT = 1 << 20
"""Bytes that transfers move while one of them arrives, about."""
MOST_SLOTS = 8
MOST_READERS = 2
"""Operations that read sums in PSUM; more of them keep it occupied for too long."""
_INT16 = 1 << 15
_COPIED = (FLOAT32, BFLOAT16, FLOAT16)
"""Types that a copy rounds sums to."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Products side by side: `size` of them, each so many indices further in some dimensions."""

    size: int
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Dimensions of a product, by their role, with the sizes that it has in one batch."""

    sizes: tuple[int, ...]
    batches: tuple[Batch, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    contracted: tuple[int, ...]

    def axes(self, dims: Sequence[int]) -> list[Axis]:
        return [Axis(dim, self.sizes[dim]) for dim in dims if self.sizes[dim] > 1]

    def count(self, dims: Sequence[int]) -> int:
        return math.prod(self.sizes[dim] for dim in dims)


@dataclass(frozen=True, slots=True)
class Step:
    """Contracted elements that are multiplied together: on partitions, in panels, in loops."""

    partitions: tuple[Axis, ...]
    #: Within a panel.
    inner: tuple[Axis, ...]
    #: Panels, or parts of one that are loaded one by one.
    loops: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...]
    #: Whether neighbours in memory lie in one partition.
    is_major: bool = False


def is_turned(operand: Operand, step: Step, free: Sequence[Axis]) -> bool:
    """Whether memory runs along the partitions of a panel: it is loaded by rows and transposed."""
    if not step.partitions or step.is_major:
        return False
    along = step.partitions[-1]
    if abs(operand.strides[along.dim] * along.step) != 1:
        return False
    width = math.prod(axis.size for axis in free if operand.strides[axis.dim])
    return width > 1 or math.prod(axis.size for axis in step.partitions) > NARROW


@dataclass
class ProductWriter:
    """Writes the kernel of a product."""

    builder: KernelBuilder
    product: Product
    left: Operand
    right: Operand
    emitter: TileEmitter
    result: np.dtype
    #: The engine that copies sums out of PSUM.
    evicting: Engine = Engine.VECTOR
    stack: list[tuple[str, int]] = field(default_factory=list)
    _plan: Schedule | None = None
    #: Whether panels are loaded through transposes, which take banks of PSUM.
    _turns: bool = False
    #: Inputs of what follows that are loaded already, and whether they are loaded tile by tile.
    _shares_late: bool = False
    _shared: dict[int, Panel] = field(default_factory=dict)

    # Choice

    def write(self) -> None:
        """The kernel."""
        product = self.product
        steps = self.steps()
        left = self._side(self.left, product.left, steps)
        right = self._side(self.right, product.right, steps)
        self._turns = left.is_turned or right.is_turned
        passes = 4 if FLOAT32 in (self.left.dtype, self.right.dtype) else 1
        runs = self._runs()
        self._plan = schedule(
            left, right, product.count(product.contracted), passes, runs, self._budget()
        )
        position = dict.fromkeys(range(len(product.sizes)), ZERO)
        self.batches(product.batches, position, functools.partial(self._one, steps))

    def _budget(self) -> int:
        """Bytes of a partition for panels: what tiles of results and rows leave."""
        usable = self.builder.core.sbuf.usable_partition_bytes
        program = self.emitter.program
        dtypes = [each.dtype for each in (*program.inputs, *program.inputs)]
        dtypes += [each.dtype for each in program.nodes]
        nbytes = sum(bytes_of(storage_of(dtype).dtype) for dtype in dtypes)
        return usable - min(usable // 3, nbytes * MOVING) - CHUNK_BYTES

    def _side(self, operand: Operand, dims: tuple[int, ...], steps: list[Step]) -> Side:
        axes = self.product.axes(dims)

        def panel(width: int) -> int:
            (tile, *_) = blocks(axes, width)
            return sum(self._panel_bytes(operand, tile.tile, step) for step in steps)

        stored = bytes_of(operand.view.buffer.dtype)
        turned = any(is_turned(operand, step, axes) for step in steps)
        return Side(self.product.count(dims), stored, turned, panel)

    def _runs(self) -> tuple[int, int]:
        """Runs of stored results if left or right dimensions lie on partitions."""
        program = self.emitter.program
        total = math.prod(program.domain)
        found = []
        for dims in (self.product.right, self.product.left):
            runs = 0
            axes = [axis for axis in self.product.axes(dims) if axis.dim < len(program.domain)]
            for output in program.outputs:
                contiguous = bool(axes) and output.strides[axes[-1].dim] == 1
                runs += total // min(MOVING, axes[-1].size) if contiguous else total
            found.append(runs)
        return found[0], found[1]

    def steps(self) -> list[Step]:
        """The contracted elements, cut up."""
        product = self.product
        axes = product.axes(product.contracted)
        found = []
        for block in blocks(axes, PARTITIONS):
            major = self._major(block)
            if major is not None:
                found.append(major)
                continue
            loops = sorted(block.loops, key=self._is_shared)
            nbytes = max(bytes_of(self.left.dtype), bytes_of(self.right.dtype))
            taps = math.prod(axis.size for axis in loops if self._is_shared(axis))
            room = max(CHUNK_BYTES // (WIDTH * nbytes), min(taps, 64))
            for chunk in blocks(loops, room):
                base = (*block.base, *chunk.base)
                found.append(Step(block.tile, chunk.tile, chunk.loops, base))
        return found

    def _is_shared(self, axis: Axis) -> bool:
        """Whether it runs along the same memory as another dimension."""
        return any(
            operand.memory.count(operand.memory[axis.dim]) > 1 and operand.strides[axis.dim] != 0
            for operand in (self.left, self.right)
        )

    def _major(self, block: Block) -> Step | None:
        """Neighbours in one partition, if that spares transposes and transfers stay efficient."""
        if len(block.tile) != 1 or len(block.loops) != 1 or block.loops[0].dim != block.tile[0].dim:
            return None
        (inner,), (outer,) = block.tile, block.loops
        pairs = ((self.left, self.product.left), (self.right, self.product.right))
        along = [(o, dims) for o, dims in pairs if abs(o.strides[inner.dim] * inner.step) == 1]
        if not along or self._is_shared(inner):
            return None
        wide = [o for o, dims in along if self.product.count(dims) > NARROW]
        for operand, dims in along:
            run = outer.size * bytes_of(operand.view.buffer.dtype)
            if run < RUN_BYTES and self.product.count(dims) > NARROW:
                return None
        part = Axis(inner.dim, inner.size, inner.step * outer.size)
        rest = Axis(inner.dim, outer.size, inner.step)
        nbytes = max(bytes_of(operand.dtype) for operand in (self.left, self.right))
        room = CHUNK_BYTES // (WIDTH * nbytes)
        for operand in wide:
            room = max(room, RUN_BYTES // bytes_of(operand.view.buffer.dtype))
        if outer.size % room:
            room = next((n for n in range(room, 2 * room) if outer.size % n == 0), outer.size)
        if room >= outer.size:
            return Step((part,), (rest,), (), block.base, is_major=True)
        chunk = Axis(inner.dim, room, inner.step)
        around = Axis(inner.dim, outer.size // room, inner.step * room)
        return Step((part,), (chunk,), (around,), block.base, is_major=True)

    # Loops

    def loops(
        self,
        loops: Sequence[Axis],
        position: Position,
        body: Callable[[dict[int, Affine]], None],
    ) -> None:
        """`body` at every position that loops lead to."""
        if not loops:
            body(dict(position))
            return
        axis, *inner = loops
        with self.builder.loop(axis.size) as variable:
            self.stack += [(name, axis.size) for name in variable.variables]
            at = {**position, axis.dim: position[axis.dim] + variable * axis.step}
            self.loops(inner, at, body)
            del self.stack[len(self.stack) - len(variable.variables) :]

    def _slot(self, slots: int = 2) -> Affine:
        """Which of several tiles is used: the number of the iteration."""
        factor, terms = 1, {}
        for name, trips in reversed(self.stack):
            terms[name] = factor
            factor = factor * trips % slots
            if not factor:
                break
        return affine(0, **terms)

    def _deep(self, partitions: int, nbytes: int) -> int:
        """Slots of a tile that is loaded again and again: transfers take time to arrive."""
        if not self.stack:
            return 1
        wanted = math.ceil(IN_FLIGHT / (partitions * nbytes))
        trips = math.prod(trips for _, trips in self.stack)
        return min(max(2, min(MOST_SLOTS, wanted, 2 * CHUNK_BYTES // nbytes)), trips)

    def batches(
        self,
        batches: Sequence[Batch],
        position: Position,
        body: Callable[[dict[int, Affine]], None],
    ) -> None:
        """`body` for every product of a batch."""
        if not batches:
            body(dict(position))
            return
        batch, *inner = batches
        with self.builder.loop(batch.size) as variable:
            self.stack += [(name, batch.size) for name in variable.variables]
            at = dict(position)
            for dim, step in batch.steps:
                at[dim] = at[dim] + variable * step
            self.batches(inner, at, body)
            del self.stack[len(self.stack) - len(variable.variables) :]

    def _one(self, steps: list[Step], position: Position) -> None:
        """One product of a batch."""
        plan, product = self._plan, self.product
        assert plan is not None
        sides = [(self.left, product.left), (self.right, product.right)]
        if not plan.left_is_stationary:
            sides.reverse()
        still, moving = sides
        outer, inner = (still, moving) if plan.outer_is_stationary else (moving, still)
        inner_axes = product.axes(inner[1])
        self._shared = {}
        columns = product.axes(moving[1])
        self._shares_late = _size(columns) > SHARED
        if not self._shares_late:
            rows = min(STATIONARY, product.count(still[1]))
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

            self.loops(block.loops, moved(position, block.base), outside)

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
        for each in blocks(self.product.axes(inner[1]), plan.inner_width):

            def within(at: dict[int, Affine], each: Block = each) -> None:
                held = dict(known)
                if plan.inner_level is Level.INNER:
                    held[id(inner)] = self.panels(inner[0], each.tile, steps, at)
                for sub in blocks(block.tile, WIDTH):

                    def square(here: dict[int, Affine], sub: Block = sub) -> None:
                        pair = (sub.tile, each.tile)
                        a, b = pair if plan.outer_is_stationary else (pair[1], pair[0])
                        panels = (held.get(id(still)), held.get(id(moving)))
                        self._square((still[0], a), (moving[0], b), panels, steps, here)

                    self.loops(sub.loops, moved(at, sub.base), square)

            self.loops(each.loops, moved(position, each.base), within)

    # Panels

    def _panel(
        self, operand: Operand, free: Sequence[Axis], step: Step, at: Position, slots: int
    ) -> Panel:
        """An empty panel for all contracted elements of a step, loops included."""
        axes = (*step.loops, *step.inner, *free)
        turned = is_turned(operand, step, free)
        contracted = frozenset(self.product.contracted)
        found = extents(operand, axes, contracted, turned=turned)
        slot = self._slot(slots) if slots > 1 else ZERO
        count = math.prod(axis.size for axis in step.partitions)
        size = math.prod(each.size for each in found)
        buffer = self.builder.tile(
            (count, size), operand.dtype, slots=1 if slot == ZERO else slots, name="panel"
        )
        return Panel(operand, buffer, step.partitions, found, moved(at, step.base), slot)

    def _panel_bytes(self, operand: Operand, free: Sequence[Axis], step: Step) -> int:
        axes = (*step.loops, *step.inner, *free)
        found = extents(operand, axes, frozenset(self.product.contracted), turned=False)
        return math.prod(each.size for each in found) * bytes_of(operand.dtype)

    def panels(
        self,
        operand: Operand,
        free: Sequence[Axis],
        steps: list[Step],
        at: Position,
        slots: int = 2,
    ) -> list[Panel]:
        """Panels of all steps, loaded part by part."""
        panels = []
        for step in steps:
            panel = self._panel(operand, free, step, at, slots)
            panels.append(panel)
            fill = functools.partial(self._load, panel, (*step.inner, *free), step, free)
            self.loops(step.loops, panel.position, fill)
        return panels

    def _load(
        self, panel: Panel, axes: Sequence[Axis], step: Step, free: Sequence[Axis], at: Position
    ) -> None:
        """Fills the part of a panel over `axes`."""
        sub = panel.within(axes)
        if is_turned(panel.operand, step, free):
            self._load_turned(panel, sub, at)
            return
        queue = self.builder.queue(0)
        src = _source(panel, (), sub, at)
        self.builder.emit(DmaCopy(dst=panel.part(sub, at), src=src, queue=queue))

    def _load_turned(self, panel: Panel, sub: Sequence[Extent], at: Position) -> None:
        """Rows of memory, transposed through the array."""
        own = [(n, each) for n, each in enumerate(sub) if not each.contracted]
        deep = [each for each in sub if each.contracted]
        rows = [Axis(n, each.size) for n, each in own]
        size = panel.buffer.partitions * math.prod(each.size for each in deep)
        nbytes = size * bytes_of(panel.operand.dtype)
        for block in blocks(rows, PARTITIONS):
            start = dict.fromkeys(range(len(sub)), ZERO)
            *around, last = block.loops or (Axis(0, 1),)
            most = min(CHUNK_BYTES, IN_FLIGHT // 2 // block.size) // nbytes
            many = max((n for n in range(1, most + 1) if last.size % n == 0), default=1)
            together = Axis(last.dim, many, last.step)
            loops = [*around, Axis(last.dim, last.size // many, last.step * many)]
            rest = functools.partial(self._load_rows, panel, sub, deep, block, together, at)
            self.loops([axis for axis in loops if axis.size > 1], moved(start, block.base), rest)

    def _load_rows(
        self,
        panel: Panel,
        sub: Sequence[Extent],
        deep: Sequence[Extent],
        block: Block,
        together: Axis,
        at: Position,
        place: Position,
    ) -> None:
        """Tiles of rows, in one transfer: `place` says where in the box, in its own steps."""
        dtype, count = panel.operand.dtype, panel.buffer.partitions
        depth = math.prod(each.size for each in deep)
        width = together.size * depth * count
        slots = self._deep(block.size, width * bytes_of(dtype))
        slot = self._slot(slots) if slots > 1 else ZERO
        tile = self.builder.tile((block.size, width), dtype, slots=slots, name="row")
        rows = [replace(sub[axis.dim], size=axis.size) for axis in block.tile]
        across = sub[together.dim] if sub else Extent(0, 0, 1)
        stride = across.stride * together.step
        rows_of_all = [*rows, replace(across, size=together.size, stride=stride)]
        moves = ZERO
        for index, each in enumerate(sub):
            moves = moves + place[index] * each.stride
        src = _source(panel, rows_of_all, deep, at, moves, columns=True)
        dst = tile_access(tile, [width], [1], slot=slot)
        self.builder.emit(DmaCopy(dst=dst, src=src, queue=self.builder.queue(0)))

        def turn(here: dict[int, Affine]) -> None:
            start = ZERO
            if together.size > 1:
                steps = here[together.dim] + place[together.dim] * -1
                start = scaled(steps, depth * count, together.step)
            self._turn(panel, sub, deep, block, at, here, tile_access(
                tile, [depth * count], [1], offset=start, slot=slot))  # fmt: skip

        self.loops([together] if together.size > 1 else [], place, turn)

    def _turn(
        self,
        panel: Panel,
        sub: Sequence[Extent],
        deep: Sequence[Extent],
        block: Block,
        at: Position,
        place: Position,
        tile: Access,
    ) -> None:
        """One tile of rows through the array, into its place in the panel."""
        dtype, count = panel.operand.dtype, panel.buffer.partitions
        depth = math.prod(each.size for each in deep)
        rows = [replace(sub[axis.dim], size=axis.size) for axis in block.tile]
        target = panel.offset(at)
        for index, each in enumerate(sub):
            target = target + place[index] * each.pitch
        pair = 2 if self.stack else 1
        assert isinstance(tile.offset, Affine)
        wide = dtype if dtype.storage_bits > 8 else INTEGERS["uint16"]
        bank = self.builder.core.psum.bank_bytes
        room = max(1, bank // (block.size * bytes_of(wide)))
        if len(deep) > 1 or len(rows) > 3 or any(each.pitch >= _INT16 for each in deep):
            room = 1
        for first in range(0, depth, room):
            many = min(room, depth - first)
            turned = self._psum(count, many * block.size, wide, pair, "turn")
            beside = self._slot(pair) if pair > 1 else ZERO
            for index in range(many):
                start = tile.offset + (first + index) * count
                part = tile_access(tile.buffer, [count], [1], offset=start, slot=tile.slot)
                dst = tile_access(turned, [block.size], [1], offset=index * block.size, slot=beside)
                self.builder.emit(TensorTranspose(dst=dst, data=part))
            seen = tile_access(turned, [many * block.size], [1], slot=beside)
            pitch = deep[0].pitch if deep else 0
            dst = tile_access(
                panel.buffer,
                [many, *(each.size for each in rows)],
                [pitch, *(each.pitch for each in rows)],
                offset=target + _deep_offset(deep, first),
                slot=panel.slot,
            )
            if wide is not dtype:
                dst = replace(dst, dtype=INTEGERS["uint8"])
            self.builder.emit(TensorCopy(dst=dst, src=seen))

    def _psum(self, rows: int, columns: int, dtype: ElementType, slots: int, name: str) -> Buffer:
        """A tile in PSUM; several slots have a size of which banks are multiples."""
        if slots > 1:
            columns = 1 << (columns - 1).bit_length()
        return self.builder.tile((rows, columns), dtype, Memory.PSUM, slots=slots, name=name)

    # Sums

    def _square(
        self,
        still: tuple[Operand, tuple[Axis, ...]],
        moving: tuple[Operand, tuple[Axis, ...]],
        panels: tuple[list[Panel] | None, list[Panel] | None],
        steps: list[Step],
        position: Position,
    ) -> None:
        """Sums over all contracted elements of some columns of both operands."""
        rows = list(tiles(still[1], STATIONARY))
        columns = list(tiles(moving[1], MOVING))
        banks = self.builder.core.psum.banks - (4 if self._turns else 0)
        slot = self._slot()
        slots = 2 if slot != ZERO and 2 * len(rows) * len(columns) <= banks else 1
        sums = [
            [self._psum(_size(row), _size(column), FLOAT32, slots, "acc") for column, _ in columns]
            for row, _ in rows
        ]
        at = slot if slots > 1 else ZERO
        for number, step in enumerate(steps):
            ends = (number == 0, number == len(steps) - 1)

            def part(here: dict[int, Affine], number: int = number, ends: tuple[bool, bool] = ends,
                     step: Step = step) -> None:  # fmt: skip
                pair = []
                for (operand, free), held in zip((still, moving), panels, strict=True):
                    if held is not None:
                        pair.append(held[number])
                        continue
                    alone = replace(step, loops=(), base=())
                    sub = self._panel_bytes(operand, free, alone)
                    slots = self._deep(_size(step.partitions), sub)
                    panel = self._panel(operand, free, alone, here, slots)
                    self._load(panel, (*step.inner, *free), step, free, here)
                    pair.append(panel)
                for (row, down), accumulators in zip(rows, sums, strict=True):
                    for (column, right), total in zip(columns, accumulators, strict=True):
                        there = moved(moved(here, tuple(down.items())), tuple(right.items()))
                        dst = tile_access(total, [_size(column)], [1], slot=at)
                        tile = (row, column)
                        self.accumulate(step, pair, tile, there, position, dst, ends)

            self.loops(step.loops, moved(position, step.base), part)
        for index, (column, right) in enumerate(columns):
            beside = moved(position, tuple(right.items()))
            if self._shares_late:
                self._shared = {}
                dims = [axis.dim for axis in rows[0][0]]
                self._share(_size(rows[0][0]), column, dims, beside)
            for (row, down), accumulators in zip(rows, sums, strict=True):
                there = moved(beside, tuple(down.items()))
                dst = tile_access(accumulators[index], [_size(column)], [1], slot=at)
                self.finish(row, column, there, dst)

    def accumulate(
        self,
        step: Step,
        pair: Sequence[Panel],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        position: Position,
        around: Position,
        dst: Access,
        ends: tuple[bool, bool],
    ) -> None:
        """The products of one step for one tile of sums."""

        def product(at: dict[int, Affine]) -> None:
            names = tuple(
                name
                for dim in self.product.contracted
                for name in at[dim].variables
                if name not in around[dim].variables
            )
            self.builder.emit(
                Matmul(
                    dst=dst,
                    stationary=pair[0].access(tile[0], at),
                    moving=pair[1].access(tile[1], at),
                    start=_flag(First, names) if ends[0] else False,
                    stop=_flag(Last, names) if ends[1] else False,
                )
            )

        self.loops(step.inner, position, product)

    # What rows share

    def _share(self, rows: int, axes: Sequence[Axis], dims: Sequence[int], at: Position) -> None:
        """Loads what follows needs and is the same for all rows, such as a bias."""
        program = self.emitter.program
        free = {axis.dim for axis in axes}
        for number, each in enumerate(program.inputs):
            if each.buffer is None or not each.axes or not each.axes <= free:
                continue
            pad = (0,) * (len(self.product.sizes) - len(each.strides))
            buffer = self.emitter.buffers[each.buffer]
            operand = Operand(
                View(buffer, (), (), each.offset),
                (*each.strides, *pad),
                tuple(range(len(self.product.sizes))),
                storage_of(each.dtype).dtype,
            )
            step = Step(tuple(Axis(dim, rows) for dim in dims[:1] if rows > 1), (), (), ())
            own = [axis for axis in axes if axis.dim in each.axes]
            found = extents(operand, own, frozenset(), turned=False)
            if [each.memory for each in found] == [axis.dim for axis in own]:
                panel = self._panel(operand, own, step, at, 2 if self.stack else 1)
                self._load(panel, own, step, own, at)
                self._shared[number] = panel

    def _given(
        self, row: tuple[Axis, ...], column: tuple[Axis, ...], position: Position
    ) -> dict[Reference, Access]:
        found = {}
        for number, panel in self._shared.items():
            axes = self.emitter.program.inputs[number].axes
            access = panel.access([axis for axis in column if axis.dim in axes], position)
            found[Reference(number, is_input=True)] = replace(access, partitions=_size(row))
        return found

    def finish(
        self, row: tuple[Axis, ...], column: tuple[Axis, ...], position: Position, total: Access
    ) -> None:
        """What follows from a tile of sums, and where it goes."""
        program = self.emitter.program
        box = Box(row, column, {d: position[d] for d in range(len(program.domain))})
        given = total if self._is_read_in_psum() else self._evicted(row, column, total)
        shared = self._given(row, column, position)
        self.emitter.box(box, {Reference(0, is_input=True): given, **shared})

    def _is_read_in_psum(self) -> bool:
        """Whether what follows may read sums where they are: few do, and nobody stores them."""
        program, sums = self.emitter.program, Reference(0, is_input=True)
        users = sum(sums in node.operands for node in program.nodes)
        stored = any(output.value == sums for output in program.outputs)
        return storage_of(self.result).dtype == FLOAT32 and not stored and users <= MOST_READERS

    def _evicted(self, row: tuple[Axis, ...], column: tuple[Axis, ...], total: Access) -> Access:
        """Sums in SBUF, in the type of the result."""
        dtype = storage_of(self.result).dtype
        given = self._out(row, column, dtype)
        if dtype in _COPIED:
            self.builder.emit(TensorCopy(dst=given, src=total, engine=self.evicting))
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

    def _out(self, row: tuple[Axis, ...], column: tuple[Axis, ...], dtype: ElementType) -> Access:
        slot = self._slot()
        slots = 1 if slot == ZERO else 2
        tile = self.builder.tile((_size(row), _size(column)), dtype, slots=slots, name="out")
        return tile_access(tile, [_size(column)], [1], slot=slot)


def _flag(kind: type[First] | type[Last], names: tuple[str, ...]) -> Flag:
    return kind(names) if names else True


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _deep_offset(deep: Sequence[Extent], index: int) -> int:
    total = 0
    for each in reversed(deep):
        index, part = divmod(index, each.size)
        total += part * each.pitch
    return total


def _source(
    panel: Panel,
    rows: Sequence[Extent],
    deep: Sequence[Extent],
    at: Position,
    moves: Affine = ZERO,
    *,
    columns: bool = False,
) -> Access:
    """A box of an operand in HBM: rows, partitions of the panel (or `columns`), the rest."""
    operand = panel.operand
    partitions = [(axis.size, operand.strides[axis.dim] * axis.step) for axis in panel.partitions]
    around = [(each.size, each.stride) for each in deep]
    inner = [*around, *partitions] if columns else [*partitions, *around]
    walked = [*((each.size, each.stride) for each in rows), *inner]
    return _walk(operand, operand.start(at) + moves, walked)


def _walk(operand: Operand, start: Affine, walked: Sequence[tuple[int, int]]) -> Access:
    view = replace(
        operand.view,
        shape=tuple(n for n, _ in walked),
        strides=tuple(s for _, s in walked),
        offset=0,
    )
    return view.access(start)
