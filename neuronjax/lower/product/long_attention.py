"""Attention over more keys than SBUF holds rows of: the chain runs part by part of the keys.

A sweep goes over all keys. The first one makes the scores and reduces them; each further one takes
what the sweeps before it have reduced, the greatest score of a row for instance, and goes on, until
the weights are known and are multiplied with the values. Sums of products stay in PSUM. What the
later sweeps read of an earlier one's values stays in SBUF, or is made again where there is no room.
Dao et al., "FlashAttention" (2022), has one sweep, which scales sums whenever a greater score
appears: another rounding than what the program asks for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import Axis, Box, size_of
from neuronjax.lower.chain.positions import Position, nest, shifted
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.product.attention_rows import AttentionWriter, Panels, Work
from neuronjax.lower.product.panels import Block, Panel, blocks, scaled, tiles
from neuronjax.lower.product.product import flag
from neuronjax.lower.product.steps import Step
from neuronjax.lower.product.sweeps import Room, Sweeps
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.write.builder import tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.program.affine import Affine, First, Last
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.vector_engine import TensorCopy


@dataclass
class _Rows:
    """Some queries on their way through the sweeps."""

    work: Work
    queries: list[Panel]
    #: What the chain reads of memory and is the same for all keys.
    inputs: dict[Reference, Access]
    #: Values of all keys that later sweeps read.
    kept: Buffer | None
    tops: Buffer | None
    #: Sums of products.
    sums: Access
    totals: dict[Reference, Access] = field(default_factory=dict)


@dataclass
class LongAttentionWriter(AttentionWriter):
    """Writes the kernel."""

    room: Room

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.key,) = self.keys
        emitter = self.first.emitter
        self.sweeps = Sweeps.of(emitter.program, self.key.dim, self.seen, self.weights.reference)
        emitter.wanted = emitter.wanted | {*self.sweeps.kept}
        self.parts = list(blocks([self.key], self.room.part))
        #: Inputs of the chain that vary along keys only: positions, for instance.
        self.same: Mapping[Reference, Access] = {}
        self.first_key = Affine()

    def write(self) -> None:
        """The kernel."""
        nest(self.builder, self.first.product.batches, self.origin(), self.of_batch)

    def panels(self, position: Position) -> Sequence[Panels]:
        """The keys and values of one batch, if they stay: those of each part."""
        self.first_key = position[self.key.dim]
        if not self.room.panels:
            return []
        widest = max((block.tile for block in blocks(self.queries, PARTITIONS)), key=size_of)
        values = Values(self.first.emitter, self._box(widest, position, self.key), {})
        self.same = {
            Reference(number, is_input=True): values.load(number)
            for number, source in enumerate(self.first.emitter.program.inputs)
            if source.buffer is not None and source.axes == {self.key.dim}
        }
        return [self._loaded(part, shifted(position, part.base), 1) for part in self.parts]

    def _loaded(self, part: Block, start: Position, slots: int) -> Panels:
        """Keys and values of a part, with all that its loops lead to."""
        keys = math.prod(axis.size for axis in part.loops) * part.size
        free = [Axis(self.key.dim, keys)]
        own = self.first.panels(self.key_operand, free, self.first_steps, start, slots)
        steps, there = self._value_steps(part), self.beyond(start)
        return own, self.last.panels(self.value_operand, self.columns, steps, there, slots)

    def _value_steps(self, part: Block) -> list[Step]:
        """Keys of a part on partitions."""
        dim = next(dim for dim, axis in self.weights.dims if axis == self.key.dim)
        loops = tuple(Axis(dim, axis.size, axis.step) for axis in part.loops)
        full, rest = divmod(part.size, PARTITIONS)
        steps = []
        if full:
            inner = (Axis(dim, full, PARTITIONS),) if full > 1 else ()
            steps.append(Step((Axis(dim, PARTITIONS),), inner, loops, ()))
        if rest:
            partitions = (Axis(dim, rest),) if rest > 1 else ()
            steps.append(Step(partitions, (), loops, ((dim, full * PARTITIONS),)))
        return steps

    @property
    def tiles_together(self) -> int:
        """Tiles of queries for which there is room."""
        return self.room.tiles

    def side_by_side(self, works: Sequence[Work]) -> None:
        """All sweeps over the rows of some queries, in the same loops."""
        rows = [self._opened(work) for work in works]
        for sweep in range(self.sweeps.count):
            for row in rows:
                self._begin(row, sweep)
            for number, part in enumerate(self.parts):
                body = functools.partial(self._sweep, rows, sweep, number)
                nest(self.builder, part.loops, shifted(works[0].position, part.base), body)
            for row in rows:
                self._reduced(row, sweep)
        for row in rows:
            self._closed(row)

    def _opened(self, work: Work) -> _Rows:
        rows, width = size_of(work.tile), size_of(self.columns)
        program, kept = self.first.emitter.program, None
        if self.room.rows and self.sweeps.kept:
            dtype = storage_of(program.dtype_of(self.sweeps.kept[0])).dtype
            kept = self.builder.tile((rows, self.key.size), dtype, name="kept")
        total = self.builder.tile((rows, width), FLOAT32, Memory.PSUM, name="sum")
        values = Values(self.first.emitter, self._box(work.tile, work.position), {})
        inputs = {
            Reference(number, is_input=True): values.load(number)
            for number, source in enumerate(program.inputs)
            if source.buffer is not None and self.key.dim not in source.axes
        }
        tops = self.tops(rows, math.ceil(self.key.size / MOVING_COLUMNS))
        sums = tile_access(total, [width], [1])
        return _Rows(work, self.queries_of(work), inputs, kept, tops, sums)

    def _begin(self, row: _Rows, sweep: int) -> None:
        """Tiles for what a sweep reduces."""
        values = Values(self.first.emitter, self._box(row.work.tile, row.work.position),
                        {**row.inputs, **row.totals})  # fmt: skip
        for number in self.sweeps.reductions:
            if self.sweeps.level[number] == sweep and Reference(number) != self.greatest:
                row.totals[Reference(number)] = values.accumulator(number)

    def _box(self, tile: tuple[Axis, ...], start: Position, keys: Axis | None = None) -> Box:
        domain = range(len(self.first.emitter.program.domain))
        free = () if keys is None else (keys,)
        return Box(tile, free, {dim: start[dim] for dim in domain})

    def _sweep(
        self, rows: Sequence[_Rows], sweep: int, number: int, position: dict[int, Affine]
    ) -> None:
        """Writes one sweep over some of a part of the keys."""
        part, held = replace(self.parts[number], loops=()), rows[0].work.panels
        makes_scores = not sweep or not self.room.rows
        multiplies = sweep == self.sweeps.weights
        panels: Panels = ([], [])
        if held:
            panels = held[number]
        elif makes_scores or multiplies:
            panels = self._streamed(part, position, makes_scores, multiplies)
        (chunk,) = part.tile or (Axis(self.key.dim, 1),)
        for row in rows:
            here = {**row.work.position, self.key.dim: position[self.key.dim]}
            values = self._given(row, sweep, chunk, here)
            if makes_scores:
                values.known[self.seen] = self._scored(row, panels[0], chunk, here, sweep)
            self._reduce(row, values, sweep)
            if multiplies:
                self._multiply(row, values, panels[1], number, here)

    def _streamed(self, part: Block, at: Position, keys: bool, values: bool) -> Panels:
        """Loads the keys and values of a part as a sweep needs them."""
        own: list[Panel] = []
        other: list[Panel] = []
        if keys:
            own = self.first.panels(self.key_operand, part.tile, self.first_steps, at)
        if values:
            steps = self._value_steps(part)
            other = self.last.panels(self.value_operand, self.columns, steps, self.beyond(at))
        return own, other

    def _given(self, row: _Rows, sweep: int, chunk: Axis, here: Position) -> Values:
        """The values of a part, as far as they are there before a sweep takes it up."""
        count, start = size_of(row.work.tile), self._index(here)
        along = {
            value: tile_access(access.buffer, [chunk.size], [1], offset=start, slot=access.slot,
                               partitions=count)
            for value, access in self.same.items()
        }  # fmt: skip
        known = {value: total for value, total in row.totals.items() if self._level(value) < sweep}
        box = self._box(row.work.tile, here, chunk)
        values = Values(self.first.emitter, box, {**row.inputs, **along, **known}, is_whole=True)
        if row.kept is None:
            return values
        part = tile_access(row.kept, [chunk.size], [1], offset=start)
        if sweep:
            values.known[self.sweeps.kept[sweep - 1]] = part
        if sweep < len(self.sweeps.kept):
            values.places = {self.sweeps.kept[sweep]: part}
        return values

    def _scored(
        self, row: _Rows, keys: list[Panel], chunk: Axis, here: Position, sweep: int
    ) -> Access:
        """Scores of one part of the keys; the greatest of them in the first sweep."""
        count, start = size_of(row.work.tile), self._index(here)
        dtype = storage_of(self.first.emitter.program.dtype_of(self.seen)).dtype
        if row.kept is not None and self.sweeps.kept[0] == self.seen:
            whole = tile_access(row.kept, [chunk.size], [1], offset=start)
        else:
            scores = self.builder.tile((count, chunk.size), dtype, name="scores")
            whole = tile_access(scores, [chunk.size], [1])
        assert isinstance(whole.offset, Affine)
        for column, at in tiles([chunk], MOVING_COLUMNS):
            size, first = size_of(column), at.get(chunk.dim, 0)
            total = self.builder.tile((count, size), FLOAT32, Memory.PSUM, name="products")
            dst = tile_access(total, [size], [1])
            there = shifted(here, tuple(at.items()))
            self._add_scores((row.queries, keys), (row.work.tile, column), there, dst)
            top = None
            if row.tops is not None and not sweep:
                top = tile_access(
                    row.tops, [1], [1], offset=scaled(start + first, 1, MOVING_COLUMNS)
                )
            part = tile_access(whole.buffer, [size], [1], offset=whole.offset + first)
            self.evict(part, dst, top)
        return whole

    def _add_scores(
        self,
        panels: tuple[Sequence[Panel], Sequence[Panel]],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        position: Position,
        dst: Access,
    ) -> None:
        """Queries times keys, in PSUM, without loops: iterations of that over the keys overlap."""
        places = [
            (number, shifted(shifted(position, step.base), tuple(at.items())), step)
            for number, step in enumerate(self.first_steps)
            for _, at in tiles((*step.loops, *step.inner), 1)
        ]
        for index, (number, at, step) in enumerate(places):
            pair = (panels[0][number], panels[1][number])
            ends = (index == 0, index == len(places) - 1)
            alone = replace(step, loops=(), inner=())
            self.first.accumulate(alone, pair, tile, at, dst, ends, at)

    def _reduce(self, row: _Rows, values: Values, sweep: int) -> None:
        """Reduces one part of the keys, but for the weights."""
        program = self.first.emitter.program
        if row.kept is not None and sweep < len(self.sweeps.kept):
            kept = self.sweeps.kept[sweep]
            made = values.in_sbuf(kept)
            if made.buffer != row.kept:
                self.builder.emit(TensorCopy(dst=values.places[kept], src=made))
        for number in self.sweeps.reductions:
            if self.sweeps.level[number] == sweep and Reference(number) != self.greatest:
                values.accumulate(number, row.totals[Reference(number)], values)
        for output in program.outputs:
            made_here = self._level(output.value) == sweep
            if made_here and self.key.dim in program.axes_of(output.value):
                values.node_of(output.value)
                values.store(output)

    def _index(self, here: Position) -> Affine:
        """The number of a key among those of its batch."""
        return here[self.key.dim] + self.first_key * -1

    def _level(self, value: Reference) -> int:
        return 0 if value.is_input else self.sweeps.level[value.number]

    def _reduced(self, row: _Rows, sweep: int) -> None:
        """The greatest scores, when all of them are there."""
        if not sweep and row.tops is not None:
            assert self.greatest is not None
            row.totals[self.greatest] = self.top_of(row.tops, size_of(row.work.tile))

    def _multiply(
        self, row: _Rows, values: Values, panels: Sequence[Panel], number: int, here: Position
    ) -> None:
        """Weights times values of some of a part of the keys, in all iterations of its loops."""
        weights = values.in_sbuf(self.weights.reference)
        steps = self._value_steps(replace(self.parts[number], loops=()))
        (turned,) = self.turned(size_of(row.work.tile), weights, steps)
        around = row.work.position[self.key.dim].variables
        names = tuple(name for name in here[self.key.dim].variables if name not in around)
        ends = (number == 0 and flag(First, names),
                number == len(self.parts) - 1 and flag(Last, names))  # fmt: skip
        ((column, at),) = tiles(self.columns, MOVING_COLUMNS)
        there = shifted(self.beyond(here), tuple(at.items()))
        self.add_products(turned, panels, (column, there), row.sums, ends)

    def _closed(self, row: _Rows) -> None:
        """Writes what follows from complete sums."""
        emitter = self.first.emitter
        box = self._box(row.work.tile, row.work.position)
        values = Values(emitter, box, {**row.inputs, **row.totals})
        for output in emitter.program.outputs:
            if self.key.dim not in emitter.program.axes_of(output.value):
                values.node_of(output.value)
                values.store(output)
        known = {outer: values.node_of(inner) for outer, inner in self.shared.items()}
        there = self.beyond(row.work.position)
        ((column, at),) = tiles(self.columns, MOVING_COLUMNS)
        here = shifted(there, tuple(at.items()))
        self.last.finish(self.rows_of(row.work), column, here, row.sums, known)
