"""Loading panels: loops, tiles of several slots, transposes on the way."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronjax.lower.chain.boxes import Axis, greatest_divisor, size_of
from neuronjax.lower.chain.positions import Position, nest, origin, shifted
from neuronjax.lower.product.blocking import WIDTH
from neuronjax.lower.product.panels import Block, Extent, Operand, Panel, blocks, extents, scaled
from neuronjax.lower.product.steps import Product, Step, is_turned
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import ZERO, Affine, affine
from neuronjax.program.element_types import INTEGERS, ElementType, bytes_of
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.tensor_engine import TensorTranspose
from neuronjax.program.vector_engine import TensorCopy

_INT16 = 1 << 15


@dataclass
class Loader:
    """Brings panels of the operands of a product into SBUF."""

    builder: KernelBuilder
    product: Product

    def slot(self, slots: int = 2) -> Affine:
        """Which of several tiles is used: the number of the iteration."""
        factor, terms = 1, {}
        for name, trips in reversed(self.builder.around):
            terms[name] = factor
            factor = factor * trips % slots
            if not factor:
                break
        return affine(0, **terms)

    def deep(self, partitions: int, nbytes: int) -> int:
        """Slots of a tile that is loaded again and again: transfers take time to arrive."""
        if not self.builder.around:
            return 1
        tuning = self.builder.tuning
        wanted = math.ceil(tuning.in_flight_bytes / (partitions * nbytes))
        trips = math.prod(trips for _, trips in self.builder.around)
        most = min(tuning.load_slots, wanted, 2 * tuning.chunk_bytes // nbytes)
        return min(max(2, most), trips)

    def panel(
        self, operand: Operand, free: Sequence[Axis], step: Step, at: Position, slots: int
    ) -> Panel:
        """An empty panel for all contracted elements of a step, loops included."""
        axes = (*step.loops, *step.inner, *free)
        turned = is_turned(operand, step, free)
        contracted = frozenset(self.product.contracted)
        close = self.builder.tuning.close_elements
        box = extents(
            operand,
            axes,
            contracted,
            close,
            turned=turned,
            partitions=step.partitions,
        )
        slot = self.slot(slots) if slots > 1 else ZERO
        count = math.prod(axis.size for axis in step.partitions)
        size = math.prod(extent.size for extent in box)
        buffer = self.builder.tile(
            (count, size), operand.dtype, slots=1 if slot == ZERO else slots, name="panel"
        )
        return Panel(operand, buffer, step.partitions, box, shifted(at, step.base), slot)

    def panel_bytes(self, operand: Operand, free: Sequence[Axis], step: Step) -> int:
        axes = (*step.loops, *step.inner, *free)
        contracted = frozenset(self.product.contracted)
        close = self.builder.tuning.close_elements
        box = extents(operand, axes, contracted, close, turned=False, partitions=step.partitions)
        return math.prod(extent.size for extent in box) * bytes_of(operand.dtype)

    def panels(
        self,
        operand: Operand,
        free: Sequence[Axis],
        steps: list[Step],
        at: Position,
        slots: int = 2,
    ) -> list[Panel]:
        """Panels of all steps, loaded part by part: products begin with the first columns."""
        panels = []
        for step in steps:
            panel = self.panel(operand, free, step, at, slots)
            panels.append(panel)
            for block in blocks(free, self._columns(operand, free, step)):
                start = shifted(panel.position, block.base)
                fill = functools.partial(self.load, panel, (*step.inner, *block.tile), step, free)
                nest(self.builder, (*step.loops, *block.loops), start, fill)
        return panels

    def _columns(self, operand: Operand, free: Sequence[Axis], step: Step) -> int:
        """Columns of a panel that are loaded at a time: about `chunk_bytes` of a partition, and no
        less than are multiplied at a time."""
        if is_turned(operand, step, free):
            return size_of(free)
        part = replace(step, loops=())
        column = self.panel_bytes(operand, free, part) / size_of(free)
        return max(1, int(self.builder.tuning.chunk_bytes / (column * WIDTH))) * WIDTH

    def load(
        self, panel: Panel, axes: Sequence[Axis], step: Step, free: Sequence[Axis], at: Position
    ) -> None:
        """Fills the part of a panel over `axes`."""
        sub = panel.within(axes)
        if is_turned(panel.operand, step, free):
            self._load_turned(panel, sub, at)
            return
        queue = self.builder.queue(0)
        src = _source(panel, (), sub, at)
        self.builder.copy(panel.part(sub, at), src, queue)

    def _load_turned(self, panel: Panel, sub: Sequence[Extent], at: Position) -> None:
        """Rows of memory, transposed through the array."""
        own = [(n, extent) for n, extent in enumerate(sub) if not extent.contracted]
        deep = [extent for extent in sub if extent.contracted]
        rows = [Axis(n, extent.size) for n, extent in own]
        size = panel.buffer.partitions * math.prod(extent.size for extent in deep)
        nbytes, tuning = size * bytes_of(panel.operand.dtype), self.builder.tuning
        for block in blocks(rows, PARTITIONS):
            start = origin(len(sub))
            *around, last = block.loops or (Axis(0, 1),)
            at_once = tuning.in_flight_bytes // 2 // block.size
            most = min(tuning.chunk_bytes, at_once) // nbytes
            many = greatest_divisor(last.size, most)
            neighbours = Axis(last.dim, many, last.step)
            loops = [*around, Axis(last.dim, last.size // many, last.step * many)]
            rest = functools.partial(self._load_rows, panel, sub, deep, block, neighbours, at)
            nest(
                self.builder,
                [axis for axis in loops if axis.size > 1],
                shifted(start, block.base),
                rest,
            )

    def _load_rows(
        self,
        panel: Panel,
        sub: Sequence[Extent],
        deep: Sequence[Extent],
        block: Block,
        neighbours: Axis,
        at: Position,
        place: Position,
    ) -> None:
        """Tiles of rows, in one transfer: `place` says where in the box, in its own steps."""
        dtype, count = panel.operand.dtype, panel.buffer.partitions
        depth = math.prod(extent.size for extent in deep)
        width = neighbours.size * depth * count
        slots = self.deep(block.size, width * bytes_of(dtype))
        slot = self.slot(slots) if slots > 1 else ZERO
        tile = self.builder.tile((block.size, width), dtype, slots=slots, name="row")
        rows = [replace(sub[axis.dim], size=axis.size) for axis in block.tile]
        across = sub[neighbours.dim] if sub else Extent(0, 0, 1)
        stride = across.stride * neighbours.step
        rows_of_all = [*rows, replace(across, size=neighbours.size, stride=stride)]
        moves = ZERO
        for index, extent in enumerate(sub):
            moves = moves + place[index] * extent.stride
        src = _source(panel, rows_of_all, deep, at, moves, columns=True)
        dst = tile_access(tile, [width], [1], slot=slot)
        self.builder.copy(dst, src, self.builder.queue(0))

        def turn(here: dict[int, Affine]) -> None:
            start = ZERO
            if neighbours.size > 1:
                steps = here[neighbours.dim] + place[neighbours.dim] * -1
                start = scaled(steps, depth * count, neighbours.step)
            self._turn(panel, sub, deep, block, at, here, tile_access(
                tile, [depth * count], [1], offset=start, slot=slot))  # fmt: skip

        nest(self.builder, [neighbours] if neighbours.size > 1 else [], place, turn)

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
        """Turns one tile of rows through the array, into its place in the panel."""
        dtype, count = panel.operand.dtype, panel.buffer.partitions
        depth = math.prod(extent.size for extent in deep)
        rows = [replace(sub[axis.dim], size=axis.size) for axis in block.tile]
        target = panel.offset(at)
        for index, extent in enumerate(sub):
            target = target + place[index] * extent.pitch
        pair = 2 if self.builder.around else 1
        assert isinstance(tile.offset, Affine)
        wide = dtype if dtype.storage_bits > 8 else INTEGERS["uint16"]
        bank = self.builder.core.psum.bank_bytes
        room = max(1, bank // (block.size * bytes_of(wide)))
        is_inside = _is_inside(panel, deep)
        is_even = all(a.pitch == b.pitch * b.size for a, b in itertools.pairwise(deep))
        if (
            not (is_even and (is_inside or len(deep) < 2))
            or len(rows) > 3
            or any(extent.pitch >= _INT16 for extent in deep)
        ):
            room = 1
        for first in range(0, depth, room):
            many = min(room, depth - first)
            turned = self.psum(count, many * block.size, wide, pair, "turn")
            beside = self.slot(pair) if pair > 1 else ZERO
            step, apart = (depth, 1) if is_inside else (1, count)
            for index in range(many):
                start = tile.offset + (first + index) * apart
                part = tile_access(tile.buffer, [count], [step], offset=start, slot=tile.slot)
                dst = tile_access(turned, [block.size], [1], offset=index * block.size, slot=beside)
                self.builder.emit(TensorTranspose(dst=dst, data=part))
            seen = tile_access(turned, [many * block.size], [1], slot=beside)
            pitch = deep[-1].pitch if deep else 0
            dst = tile_access(
                panel.buffer,
                [many, *(row.size for row in rows)],
                [pitch, *(row.pitch for row in rows)],
                offset=target + _deep_offset(deep, first),
                slot=panel.slot,
            )
            if wide is not dtype:
                dst = replace(dst, dtype=INTEGERS["uint8"])
            self.builder.emit(TensorCopy(dst=dst, src=seen))

    def psum(self, rows: int, columns: int, dtype: ElementType, slots: int, name: str) -> Buffer:
        """A tile in PSUM; several slots have a size of which banks are multiples."""
        if slots > 1:
            columns = 1 << (columns - 1).bit_length()
        return self.builder.tile((rows, columns), dtype, Memory.PSUM, slots=slots, name=name)


def _is_inside(panel: Panel, deep: Sequence[Extent]) -> bool:
    """Whether taps lie between one partition of a panel and the next in memory."""
    along = panel.partitions[-1]
    stride = abs(panel.operand.strides[along.dim] * along.step)
    return any(extent.size > 1 and abs(extent.stride) < stride for extent in deep)


def _deep_offset(deep: Sequence[Extent], index: int) -> int:
    total = 0
    for extent in reversed(deep):
        index, part = divmod(index, extent.size)
        total += part * extent.pitch
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
    around = [(extent.size, extent.stride) for extent in deep]
    is_outside = columns and not _is_inside(panel, deep)
    inner = [*around, *partitions] if is_outside else [*partitions, *around]
    walked = [*((row.size, row.stride) for row in rows), *inner]
    return _walk(operand, operand.start(at) + moves, walked)


def _walk(operand: Operand, start: Affine, walked: Sequence[tuple[int, int]]) -> Access:
    view = replace(
        operand.view,
        shape=tuple(n for n, _ in walked),
        strides=tuple(s for _, s in walked),
        offset=ZERO,
    )
    return view.access(operand.address(start))
