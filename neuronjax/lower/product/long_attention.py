"""Attention over more keys than SBUF holds rows of: the chain runs part by part of the keys.

A sweep goes over all keys. The first one makes the scores and reduces them; each further one takes
what the sweeps before it have reduced, the greatest score of a row for instance, and goes on, until
the weights are known and are multiplied with the values. Sums of products stay in PSUM. What the
later sweeps read of the first one's values stays in SBUF, or is made again where there is no room.
Dao et al., "FlashAttention" (2022), has one sweep, which scales sums whenever a greater score
appears: another rounding than what the program asks for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import SLOTS, Axis, Box
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.product.attention_rows import BANKS, AttentionWriter, Panels, Work
from neuronjax.lower.product.blocking import MOVING, STATIONARY
from neuronjax.lower.product.panels import Panel, Position, blocks, shifted, tiles
from neuronjax.lower.product.steps import Step
from neuronjax.lower.product.sweep_tiles import CHUNK, ChunkValues, Rows, Turns
from neuronjax.lower.product.sweeps import ROOMS, Along, Room, Sweeps, bytes_in_tile
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.write.builder import PARTITIONS, tile_access
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.vector_engine import TensorCopy

SMALL_BYTES = 16 * 1024
"""Bytes of a partition for queries, results and what rows are reduced to."""


@dataclass
class LongAttentionWriter(AttentionWriter):
    """Writes the kernel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.key,) = self.keys
        program = self.first.emitter.program
        self.sweeps = Sweeps.of(program, self.key.dim, self.seen, self.weights.reference)
        emitter = self.first.emitter
        emitter.wanted = emitter.wanted | {self.sweeps.kept}
        self.along = Along(program, self.key.dim, self.sweeps.kept, emitter.shortcuts.absorbed)
        self.room = self._room()
        self.held: dict[tuple[Reference, int], Access] = {}

    def write(self) -> None:
        """The kernel."""
        product = self.first.product
        position = dict.fromkeys(range(len(product.sizes)), ZERO)
        self.first.batches(product.batches, position, self.of_batch)

    def _room(self) -> Room:
        """What there is room for beside the keys that are worked on."""
        core, count, program = self.builder.core, self.key.size, self.first.emitter.program
        weights = bytes_in_tile(program, self.weights.reference)
        budget = core.sbuf.usable_partition_bytes - SMALL_BYTES
        budget -= 2 * CHUNK * (sum(self.along.made_by_key()) + weights)
        row = count * bytes_in_tile(program, self.sweeps.kept)
        row += SLOTS * count * sum(bytes_in_tile(program, value) for value in self.along.by_row())
        keys = len(self.first_steps) * bytes_of(self.key_operand.dtype)
        width = math.prod(axis.size for axis in self.columns)
        values = width * bytes_of(self.value_operand.dtype) / PARTITIONS
        inputs = sum(bytes_in_tile(program, value) for value in self.along.same_for_all())
        panels = count * (keys + values + inputs)
        rooms = (
            room
            for room in ROOMS
            if room.rows * (1 + room.pair) * row + room.panels * panels <= budget
        )
        return next(rooms, ROOMS[-1])

    def panels(self, position: Position) -> Sequence[Panels]:
        """The keys and values of one batch, if they stay."""
        self.held = {}
        if not self.room.panels:
            return []
        chunks = self._chunks()
        for chunk in chunks:
            box = self._box(self._widest(), position, chunk)
            values = Values(self.first.emitter, box, {})
            for value in self.along.same_for_all():
                self.held[value, chunk.step] = values.load(value.number)
        return [(self._keys(position, at), self._values(position, at)) for at in chunks]

    def _widest(self) -> tuple[Axis, ...]:
        """The most queries at a time."""
        return max(
            (block.tile for block in blocks(self.queries, STATIONARY)),
            key=lambda tile: math.prod(axis.size for axis in tile),
        )

    def _chunks(self) -> list[Axis]:
        """Parts of the keys; the step is where they begin."""
        starts = range(0, self.key.size, CHUNK)
        return [Axis(self.key.dim, min(CHUNK, self.key.size - start), start) for start in starts]

    def _keys(self, position: Position, chunk: Axis) -> list[Panel]:
        start = shifted(position, ((chunk.dim, chunk.step),))
        free = [Axis(chunk.dim, chunk.size)]
        return self.first.panels(self.key_operand, free, self.first_steps, start)

    def _values(self, position: Position, chunk: Axis) -> list[Panel]:
        start = shifted(position, ((chunk.dim, chunk.step),))
        steps, there = self._value_steps(chunk), self.beyond(start)
        return self.last.panels(self.value_operand, self.columns, steps, there)

    def _value_steps(self, chunk: Axis) -> list[Step]:
        """Keys on partitions."""
        dim = next(dim for dim, axis in self.weights.dims if axis == chunk.dim)
        full, rest = divmod(chunk.size, PARTITIONS)
        steps = []
        if full:
            inner = (Axis(dim, full, PARTITIONS),) if full > 1 else ()
            steps.append(Step((Axis(dim, PARTITIONS),), inner, (), ()))
        if rest:
            partitions = (Axis(dim, rest),) if rest > 1 else ()
            steps.append(Step(partitions, (), (), ((dim, full * PARTITIONS),)))
        return steps

    def side_by_side(self, works: Sequence[Work]) -> None:
        """Scores of all of them before anything waits for what becomes of the first."""
        count = len(works) if self.room.pair else 1
        for first in range(0, len(works), count):
            self._all_sweeps(works[first : first + count])

    def _all_sweeps(self, works: Sequence[Work]) -> None:
        scores = self.ring(STATIONARY, MOVING, FLOAT32)
        rows = [self._opened(work) for work in works]
        for sweep in range(self.sweeps.count):
            for number, chunk, some in self._order(rows):
                self._sweep(sweep, number, chunk, some, scores)
            for row in rows:
                self._reduced(row, sweep)
        for row in rows:
            self._closed(row)

    def _order(self, rows: Sequence[Rows]) -> Iterator[tuple[int, Axis, Sequence[Rows]]]:
        """Chunks with the rows that go through them: all where keys are loaded for them."""
        parts = [[row] for row in rows] if self.room.panels else [list(rows)]
        for some, (number, chunk) in itertools.product(parts, enumerate(self._chunks())):
            yield number, chunk, some

    def _opened(self, work: Work) -> Rows:
        rows = math.prod(axis.size for axis in work.tile)
        kept = None
        if self.room.rows:
            dtype = storage_of(self.first.emitter.program.dtype_of(self.sweeps.kept)).dtype
            kept = self.builder.tile((rows, self.key.size), dtype, name="kept")
        parts = sum(math.ceil(chunk.size / MOVING) for chunk in self._chunks())
        width = math.prod(axis.size for axis in self.columns)
        total = self.builder.tile((rows, width), FLOAT32, Memory.PSUM, name="sum")
        sums = tile_access(total, [width], [1])
        values = Values(self.first.emitter, self._box(work.tile, work.position), {})
        inputs = {
            Reference(number, is_input=True): values.load(number)
            for number, source in enumerate(self.first.emitter.program.inputs)
            if source.buffer is not None and self.key.dim not in source.axes
        }
        if self.room.rows:
            whole = self._box(work.tile, work.position, Axis(self.key.dim, self.key.size, 0))
            along = Values(self.first.emitter, whole, {})
            inputs |= {value: along.load(value.number) for value in self.along.by_row()}
        tops = self.tops(rows, parts)
        turns = Turns(self.builder)
        return Rows(work, self.queries_of(work), inputs, kept, tops, sums, turns)

    def _sweep(
        self, sweep: int, number: int, chunk: Axis, some: Sequence[Rows], scores: Buffer
    ) -> None:
        """One sweep over one part of the keys."""
        position = some[0].work.position
        held = some[0].work.panels
        makes_scores = not sweep or not self.room.rows
        keys: list[Panel] = []
        if makes_scores:
            keys = held[number][0] if held else self._keys(position, chunk)
        multiplies = sweep == self.sweeps.weights
        values: list[Panel] = []
        if multiplies:
            values = held[number][1] if held else self._values(position, chunk)
        for row in some:
            given = self._given(row, sweep, chunk)
            if makes_scores:
                given[self.seen] = self._scored(row, keys, chunk, scores, sweep)
            else:
                given[self.sweeps.kept] = self._kept(row, chunk)
            box = self._box(row.work.tile, row.work.position, chunk)
            tile_values = ChunkValues(
                self.first.emitter, box, given, is_whole=True, turns=row.turns, sweep=sweep,
                number=number,
            )  # fmt: skip
            self._reduce(row, tile_values, sweep, chunk)
            if multiplies:
                weights = tile_values.in_sbuf(self.weights.reference)
                self._turn(row)
                row.weights.append((weights, values, chunk))

    def _given(self, row: Rows, sweep: int, chunk: Axis) -> dict[Reference, Access]:
        """Tiles that are there before a sweep takes up a part of the keys."""
        count = math.prod(axis.size for axis in row.work.tile)
        held = {
            value: replace(access, partitions=count)
            for (value, start), access in self.held.items()
            if start == chunk.step
        }
        reduced = {
            reference: total
            for reference, total in row.totals.items()
            if self._level(reference) < sweep
        }
        by_row = {
            value: _from(row.inputs[value], chunk.step)
            for value in self.along.by_row()
            if value in row.inputs
        }
        return {**row.inputs, **by_row, **held, **reduced}

    def _box(self, tile: tuple[Axis, ...], start: Position, chunk: Axis | None = None) -> Box:
        if chunk is not None:
            start = shifted(start, ((chunk.dim, chunk.step),))
        domain = range(len(self.first.emitter.program.domain))
        free = () if chunk is None else (Axis(chunk.dim, chunk.size),)
        return Box(tile, free, {dim: start[dim] for dim in domain})

    def _kept(self, row: Rows, chunk: Axis) -> Access:
        assert row.kept is not None
        return tile_access(row.kept, [chunk.size], [1], offset=chunk.step)

    def _scored(
        self, row: Rows, keys: list[Panel], chunk: Axis, ring: Buffer, sweep: int
    ) -> Access:
        """Scores of one part of the keys; the greatest of them in the first sweep."""
        count = math.prod(axis.size for axis in row.work.tile)
        if self.room.rows and self.sweeps.kept == self.seen:
            part = self._kept(row, chunk)
        else:
            dtype = storage_of(self.first.emitter.program.dtype_of(self.seen)).dtype
            made = row.turns.tile((sweep, -1), (STATIONARY, CHUNK), dtype, "scores")
            slot = Affine(chunk.step // CHUNK % BANKS)
            part = tile_access(made, [chunk.size], [1], partitions=count, slot=slot)
        start = shifted(row.work.position, ((chunk.dim, chunk.step),))
        for column, at in tiles([Axis(chunk.dim, chunk.size)], MOVING):
            index = (chunk.step + at.get(chunk.dim, 0)) // MOVING
            size = math.prod(axis.size for axis in column)
            slot = Affine(index % BANKS)
            dst = tile_access(ring, [size], [1], partitions=count, slot=slot)
            tile = (row.work.tile, column)
            there = shifted(start, tuple(at.items()))
            self.add_scores((row.queries, keys), tile, there, dst)
            top = None
            if row.tops is not None and not sweep:
                top = tile_access(row.tops, [1], [1], offset=index)
            assert isinstance(part.offset, Affine)
            place = tile_access(
                part.buffer, [size], [1], offset=part.offset + at.get(chunk.dim, 0),
                partitions=count, slot=part.slot,
            )  # fmt: skip
            self.evict(place, dst, top)
        return part

    def _reduce(self, row: Rows, values: Values, sweep: int, chunk: Axis) -> None:
        """What a sweep makes of one part of the keys, but for the weights."""
        emitter, kept = self.first.emitter, self.sweeps.kept
        program = emitter.program
        if not sweep and row.kept is not None and self.sweeps.count > 1:
            made = values.in_sbuf(kept)
            if made.buffer != row.kept:
                self.builder.emit(TensorCopy(dst=self._kept(row, chunk), src=made))
        for number in self.sweeps.reductions:
            reference = Reference(number)
            if self.sweeps.level[number] != sweep or reference == self.greatest:
                continue
            if reference not in row.totals:
                box = self._box(row.work.tile, row.work.position)
                outer = Values(emitter, box, {**row.inputs, **row.totals})
                row.totals[reference] = outer.accumulator(number)
            values.accumulate(number, row.totals[reference], values)
        for output in program.outputs:
            made_here = self._level(output.value) == sweep
            if made_here and self.key.dim in program.axes_of(output.value):
                values.node_of(output.value)
                values.store(output)

    def _level(self, value: Reference) -> int:
        return 0 if value.is_input else self.sweeps.level[value.number]

    def _reduced(self, row: Rows, sweep: int) -> None:
        """The greatest scores, when all of them are there."""
        if not sweep and row.tops is not None:
            assert self.greatest is not None
            rows = math.prod(axis.size for axis in row.work.tile)
            row.totals[self.greatest] = self.top_of(row.tops, rows)

    def _turn(self, row: Rows) -> None:
        """Turns weights; those that are turned already are multiplied meanwhile."""
        rows = math.prod(axis.size for axis in row.work.tile)
        while row.weights:
            weights, values, chunk = row.weights.pop()
            (parts,) = self.turned(rows, weights, self._value_steps(chunk))
            self._multiply_turned(row)
            row.turned.append((parts, values, chunk))

    def _multiply_turned(self, row: Rows) -> None:
        """Turned weights times their values."""
        while row.turned:
            parts, values, chunk = row.turned.pop()
            there = self.beyond(shifted(row.work.position, ((chunk.dim, chunk.step),)))
            ends = (chunk.step == 0, chunk.step + chunk.size == self.key.size)
            ((column, at),) = tiles(self.columns, MOVING)
            here = shifted(there, tuple(at.items()))
            self.add_products(parts, values, (column, here), row.sums, ends)

    def _closed(self, row: Rows) -> None:
        """What follows from complete sums."""
        self._turn(row)
        self._multiply_turned(row)
        emitter = self.first.emitter
        box = self._box(row.work.tile, row.work.position)
        values = Values(emitter, box, {**row.inputs, **row.totals})
        for output in emitter.program.outputs:
            if self.key.dim not in emitter.program.axes_of(output.value):
                values.node_of(output.value)
                values.store(output)
        known = {outer: values.node_of(inner) for outer, inner in self.shared.items()}
        there = self.beyond(row.work.position)
        ((column, at),) = tiles(self.columns, MOVING)
        here = shifted(there, tuple(at.items()))
        self.last.finish(self.rows_of(row.work), column, here, row.sums, known)


def _from(access: Access, start: int) -> Access:
    """A tile from one of its elements on."""
    assert isinstance(access.offset, Affine)
    return replace(access, offset=access.offset + start)
