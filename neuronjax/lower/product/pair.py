"""Two products in one kernel, and the operations that take the results of both.

The right operand of each product stays in SBUF. The left ones pass by, 128 rows at a time: sums of
both products lie in PSUM side by side when what follows reads them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Op
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import Axis, Box, size_of
from neuronjax.lower.chain.positions import Position, nest, origin, shifted
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.product.attention import product_writer
from neuronjax.lower.product.attention_rows import pitches
from neuronjax.lower.product.matmul import dimensions
from neuronjax.lower.product.panels import Operand, Panel, blocks, tiles
from neuronjax.lower.product.product import ProductWriter
from neuronjax.lower.product.steps import Step
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.lower.write.kernel_labels import chain_name
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Buffer, Memory

_SUMS = 4
"""Steps that make sums of both products."""


def pair(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """The newer product `op`, and the older one of the epilogue."""
    other, axes = epilogue.other, epilogue.axes
    assert other is not None
    ops = (op, other)
    seen = [[scope.view(operand) for operand in product.operands] for product in ops]
    sides = [dimensions(product, views) for product, views in zip(ops, seen, strict=True)]

    def write(builder: KernelBuilder, views: list[View], made: list[Buffer]) -> None:
        buffers = [*(view.buffer for view in views[4:]), *made]
        newer, older = (
            product_writer(builder, product, side, own, epilogue, buffers)
            for product, side, own in zip(ops, sides, (views[:2], views[2:4]), strict=True)
        )
        PairWriter(builder, newer, older, axes).write()

    key = ("pair", *sides, axes, epilogue.program,
           tuple(str(v.dtype) for o in ops for v in (*o.operands, o.result)))  # fmt: skip
    views = [*seen[0], *seen[1], *epilogue.views]
    name = f"pair_{chain_name(epilogue.operations)}"
    scope.kernel(name, epilogue.operations, key, views, epilogue.buffers, write)


@dataclass(frozen=True)
class _Passing:
    """A product: the operand that stays, the one that passes, and how the contracted is cut."""

    writer: ProductWriter
    steps: Sequence[Step]
    kept: Operand
    passing: Operand
    kept_axes: Sequence[Axis]
    passing_axes: Sequence[Axis]

    def sums(
        self, panels: Sequence[Sequence[Panel]], tile: Sequence[tuple[Axis, ...]], at: Position,
        dst: Access,
    ) -> None:  # fmt: skip
        """Adds up one tile of sums over all contracted elements."""
        row, column = tile
        for number, step in enumerate(self.steps):
            ends = (number == 0, number == len(self.steps) - 1)
            both = (panels[0][number], panels[1][number])
            add = functools.partial(
                self.writer.accumulate, step, both, (row, column), at, dst, ends
            )
            nest(self.writer.builder, step.loops, shifted(at, step.base), add)


@dataclass
class PairWriter:
    """The writer of a kernel of two products."""

    builder: KernelBuilder
    newer: ProductWriter
    older: ProductWriter
    #: Dimension of the results -> that of the older one's.
    axes: tuple[tuple[int, int], ...]

    def write(self) -> None:
        """Writes the kernel."""
        product = self.newer.product
        position = origin(len(product.sizes))
        nest(self.builder, product.batches, position, self._of_batch)

    def _passing(self, writer: ProductWriter) -> _Passing:
        product = writer.product
        return _Passing(
            writer, writer.steps(), writer.right, writer.left, product.axes(product.right),
            product.axes(product.left),
        )  # fmt: skip

    def _there(self, position: Position) -> dict[int, Affine]:
        """A position in the older product."""
        there = origin(len(self.older.product.sizes))
        for dim, own in self.axes:
            there[own] = position[dim]
        return there

    def _axes_there(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        own = dict(self.axes)
        return tuple(Axis(own[axis.dim], axis.size, axis.step) for axis in axes)

    def _of_batch(self, position: Position) -> None:
        """Writes one product of a batch."""
        newer, older = self._passing(self.newer), self._passing(self.older)
        there = self._there(position)
        kept = (
            self.newer.panels(newer.kept, newer.kept_axes, list(newer.steps), position, 1),
            self.older.panels(older.kept, older.kept_axes, list(older.steps), there, 1),
        )
        for block in blocks(newer.passing_axes, PARTITIONS):

            def body(at: dict[int, Affine], tile: tuple[Axis, ...] = block.tile) -> None:
                self._rows((newer, older), kept, tile, at)

            nest(self.builder, block.loops, shifted(position, block.base), body)

    def _share(self, newer: _Passing, older: _Passing) -> bool:
        """Whether the same rows pass by both products, as in a gated layer."""
        is_same = all(dim == own for dim, own in self.axes)
        return is_same and newer.passing == older.passing and newer.steps == older.steps

    def _rows(
        self,
        products: tuple[_Passing, _Passing],
        kept: tuple[list[Panel], list[Panel]],
        row: tuple[Axis, ...],
        at: dict[int, Affine],
    ) -> None:
        """All columns of up to 128 rows."""
        newer, older = products
        row_there = self._axes_there(row)
        own = self.newer.panels(newer.passing, row, list(newer.steps), at)
        other = own
        if not self._share(newer, older):
            there = self._there(at)
            other = self.older.panels(older.passing, row_there, list(older.steps), there)
        passing = (own, other)
        wide = self._row_values(row, newer.kept_axes, at)
        columns = list(tiles(newer.kept_axes, MOVING_COLUMNS))
        width = max(size_of(column) for column, _ in columns)
        rings = [self._ring(size_of(row), width) for _ in products]
        at_once = self._tiles_at_once
        boxes: list[tuple[Callable[[], None], ...]] = []
        for index, (column, beside) in enumerate(columns):
            here = shifted(at, tuple(beside.items()))
            totals = [
                tile_access(ring, [size_of(column)], [1], slot=Affine(index % at_once))
                for ring in rings
            ]
            column_there, there = self._axes_there(column), self._there(here)
            known = {
                reference: self._part(reference, wide[reference], column, beside)
                for reference in wide
            }
            boxes.append((
                functools.partial(
                    newer.sums, (passing[0], kept[0]), (row, column), here, totals[0]
                ),
                functools.partial(
                    older.sums, (passing[1], kept[1]), (row_there, column_there), there, totals[1]
                ),
                *self._following(row, column, here, totals, known),
            ))  # fmt: skip
        # A box takes the place of another one in PSUM, whose last reader must come before.
        until = _SUMS + _last_reader(self.newer.emitter) + 1
        _staggered(boxes, -(-until // at_once))

    def _following(
        self, row: tuple[Axis, ...], column: tuple[Axis, ...], at: Position,
        totals: Sequence[Access], known: Mapping[Reference, Access],
    ) -> Iterator[Callable[[], None]]:  # fmt: skip
        """What follows from two tiles of sums, operation by operation."""
        emitter = self.newer.emitter
        box = Box(row, column, {dim: at[dim] for dim in range(len(emitter.program.domain))})
        values = Values(emitter, box, dict(known), is_whole=True)
        for number, writer in enumerate((self.newer, self.older)):
            yield functools.partial(self._given, values, number, writer, totals[number])
        for number in range(len(emitter.program.nodes)):
            if number not in emitter.shortcuts.absorbed:
                yield functools.partial(values.node, number)
        for output in emitter.program.outputs:
            yield functools.partial(values.store, output)

    @staticmethod
    def _given(values: Values, number: int, writer: ProductWriter, total: Access) -> None:
        """Sums in the type of a product's result, as what follows finds them."""
        box = values.box
        if storage_of(writer.result).dtype != FLOAT32:
            total = writer.evicted(box.partitions, box.free, total)
        values.known[Reference(number, is_input=True)] = total

    def _row_values(
        self, row: tuple[Axis, ...], columns: Sequence[Axis], at: Position
    ) -> dict[Reference, Access]:
        """Inputs of what follows that are loaded for all columns at once."""
        emitter = self.newer.emitter
        domain = range(len(emitter.program.domain))
        values = Values(emitter, Box(row, tuple(columns), {dim: at[dim] for dim in domain}), {})
        tiles_by_value = {}
        room = self.builder.tuning.pair_shared_bytes
        for number, source in enumerate(emitter.program.inputs):
            if source.buffer is None or not source.axes:
                continue
            count = math.prod(axis.size for axis in columns if axis.dim in source.axes)
            room -= (
                self.builder.tuning.chain_slots * count * bytes_of(storage_of(source.dtype).dtype)
            )
            if room >= 0:
                tiles_by_value[Reference(number, is_input=True)] = values.load(number)
        return tiles_by_value

    def _part(
        self, reference: Reference, whole: Access, column: tuple[Axis, ...], beside: dict[int, int]
    ) -> Access:
        """What a tile of columns takes of an input for all of them."""
        axes = self.newer.emitter.program.inputs[reference.number].axes
        own = [axis for axis in self._passing(self.newer).kept_axes if axis.dim in axes]
        pitch = pitches(own)
        part = tile_access(
            whole.buffer,
            [axis.size for axis in column if axis.dim in axes],
            [pitch[axis.dim] * axis.step for axis in column if axis.dim in axes],
            offset=sum(pitch[dim] * index for dim, index in beside.items() if dim in axes),
            slot=whole.slot,
        )
        return replace(part, partitions=whole.partitions)

    @property
    def _tiles_at_once(self) -> int:
        """Tiles of sums of each product that lie in PSUM at once: both fill it."""
        return self.builder.core.psum.banks // 2

    def _ring(self, rows: int, columns: int) -> Buffer:
        """Banks of PSUM that are used in turn."""
        width = self.builder.core.psum.bank_bytes // 4
        assert columns <= width
        return self.builder.tile(
            (rows, width), FLOAT32, Memory.PSUM, slots=self._tiles_at_once, name="ring"
        )


def _last_reader(emitter: TileEmitter) -> int:
    """How many of what follows, nodes and then outputs, come before the last that reads sums."""
    program, cuts = emitter.program, emitter.shortcuts
    sums = {Reference(number, is_input=True) for number in range(2)}
    last = count = 0
    for number, node in enumerate(program.nodes):
        reads = not sums.isdisjoint(
            operand for operand in node.operands if isinstance(operand, Reference)
        )
        if number in cuts.absorbed or number in cuts.widened:
            sums |= {Reference(number)} if reads else set()
        last = count if reads else last
        count += number not in cuts.absorbed
    for output in program.outputs:
        last = count if output.value in sums else last
        count += 1
    return last


def _staggered(boxes: Sequence[Sequence[Callable[[], None]]], behind: int) -> None:
    """Does the steps of all boxes, each box so many steps behind the one before it: no engine waits
    for the box that it has just worked on."""
    order = sorted(
        (number + index * behind, index, number)
        for index, steps in enumerate(boxes)
        for number in range(len(steps))
    )
    for _, index, number in order:
        boxes[index][number]()


EPILOGUES = {"pair": pair}
"""Operation -> rule."""
