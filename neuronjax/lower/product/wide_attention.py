"""Attention over few keys: instructions of the softmax take the scores of several batches at once.

A bank of PSUM has room for the scores of several small products. They lie side by side in the
partitions of their queries, and one instruction goes through all of them. What they share with
other batches, a bias of each head for instance, is loaded before the loops that it does not change
in.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import MAX_FREE_AXES, Axis, Box, size_of
from neuronjax.lower.chain.positions import Position, nest, shifted
from neuronjax.lower.chain.tile_program import Input, Reference
from neuronjax.lower.product.attention_rows import AttentionWriter, Panels, Work
from neuronjax.lower.product.panels import tiles
from neuronjax.lower.product.steps import Batch
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.write.builder import tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Memory
from neuronjax.program.vector_engine import TensorCopy

Tiles = Mapping[Reference, Access]


@dataclass
class WideAttentionWriter(AttentionWriter):
    """The writer of a kernel of wide attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.around, self.beside = self._grouped()
        back = {axis: dim for dim, axis in self.weights.dims}
        self.beside_last = tuple(replace(axis, dim=back[axis.dim]) for axis in self.beside)
        self.same: Tiles = {}
        self.places = [at for _, at in tiles(self.beside, 1)]

    def fits(self) -> bool:
        """Whether several batches share instructions, and it pays.

        Alone, a long row has its maximum taken while it is copied: a pass less over its elements,
        which is more than what an instruction costs beside them.
        """
        few = self.builder.tuning.wide_queries
        pays = (
            size_of(self.keys) < self.builder.rates.row_sum_elements or size_of(self.queries) <= few
        )
        return pays and bool(self.beside) and size_of(self.queries) <= PARTITIONS

    def write(self) -> None:
        """Writes the kernel."""
        self._loops(self._ordered(), self.origin(), {})

    def _grouped(self) -> tuple[list[Batch], tuple[Axis, ...]]:
        """The loops over groups of batches, and the batches of a group."""
        bank = self.builder.core.psum.bank_bytes // bytes_of(FLOAT32)
        keys = size_of(self.keys)
        tuning = self.builder.tuning
        few = size_of(self.queries) <= tuning.wide_queries
        enough = bank if few else tuning.wide_elements
        every = math.prod(batch.size for batch in self.first.product.batches)
        room = min(bank // max(keys, size_of(self.columns)), every // tuning.wide_groups)
        rest = list(self.first.product.batches)
        beside: list[Axis] = []
        axes = MAX_FREE_AXES - max(len(self.keys), len(self.columns))
        for index in reversed(range(len(rest))):
            batch = rest[index]
            if len(batch.steps) != 1 or len(beside) == axes:
                break
            counts = [n for n in range(1, room + 1) if batch.size % n == 0]
            if not counts:
                break
            held = keys * size_of(beside)
            count = next((n for n in counts if n * held >= enough), counts[-1])
            ((dim, step),) = batch.steps
            if count > 1:
                beside.insert(0, Axis(dim, count, step))
            rest[index] = Batch(batch.size // count, ((dim, step * count),))
            room //= count
            if count < batch.size:
                break
        return [batch for batch in rest if batch.size > 1], tuple(beside)

    def _inputs(self) -> list[tuple[int, Input]]:
        inputs = enumerate(self.first.emitter.program.inputs)
        return [(n, source) for n, source in inputs if source.buffer is not None]

    def _ordered(self) -> Sequence[Batch]:
        """The loops in the order in which least is loaded of what rows read."""
        return min(itertools.permutations(self.around), key=self._loaded_elements)

    def _loaded_elements(self, batches: Sequence[Batch]) -> int:
        """Elements of inputs: each is loaded within the innermost loop that changes it."""
        domain = self.first.emitter.program.domain
        total = 0
        for _, source in self._inputs():
            elements = math.prod(domain[dim] for dim in source.axes)
            again = 1
            for batch in batches:
                if any(source.strides[dim] for dim, _ in batch.steps):
                    elements, again = elements * again, 1
                else:
                    again *= batch.size
            total += elements
        return total

    def _loops(self, batches: Sequence[Batch], position: Position, same: Tiles) -> None:
        """All batches of some loops; `same` is in tiles already."""
        if not batches:
            self.same = same
            self._groups((), 1, position)
            return
        batch, *inner = batches
        held = {**same, **self._held(batches, position, same)}
        if inner:
            nest(self.builder, [batch], position, lambda at: self._loops(inner, at, held))
            return
        self.same = held
        most = self.builder.tuning.wide_together
        count = next((n for n in range(most, 1, -1) if batch.size % n == 0), 1)
        steps = tuple((dim, count * step) for dim, step in batch.steps)
        some = functools.partial(self._groups, batch.steps, count)
        nest(self.builder, [Batch(batch.size // count, steps)], position, some)

    def _groups(self, step: tuple[tuple[int, int], ...], count: int, position: Position) -> None:
        """Writes some groups of batches side by side."""
        places = [tuple((dim, number * n) for dim, n in step) for number in range(count)]
        starts = [shifted(position, place) for place in places]
        works = [Work(tuple(self.queries), start, self.panels(start)) for start in starts]
        self.side_by_side(works)

    def _held(self, batches: Sequence[Batch], position: Position, same: Tiles) -> Tiles:
        """Holds what no iteration of some loops changes."""
        dims = {dim for batch in batches for dim, _ in batch.steps}
        held: dict[Reference, Access] = {}
        room = self.builder.tuning.shared_bytes
        box = self._box(position)
        for number, source in self._inputs():
            reference = Reference(number, is_input=True)
            if reference in same or any(source.strides[dim] for dim in dims):
                continue
            own = [axis.size for axis in box.free if axis.dim in source.axes]
            room -= math.prod(own) * bytes_of(storage_of(source.dtype).dtype)
            if room >= 0:
                held[reference] = self._loaded(number, source, box)
        return held

    def _loaded(self, number: int, source: Input, box: Box) -> Access:
        """An input in a tile: in the order of memory at first, which makes long transfers."""
        values = Values(self.first.emitter, box, {})
        free = tuple(sorted(box.free, key=lambda axis: -abs(source.strides[axis.dim] * axis.step)))
        own = [axis for axis in box.free if axis.dim in source.axes]
        if [axis for axis in free if axis in own] == own:
            return values.load(number)
        stored = Values(self.first.emitter, replace(box, free=free), {})
        dst = values.tile(source.axes, storage_of(source.dtype).dtype, "held")
        src = stored.broadcast(stored.load(number), source.axes, own)
        self.builder.emit(TensorCopy(dst=dst, src=src))
        return dst

    def _box(self, position: Position) -> Box:
        domain = range(len(self.first.emitter.program.domain))
        free = (*self.beside, *self.keys)
        return Box(tuple(self.queries), free, {dim: position[dim] for dim in domain})

    def box_of(self, work: Work) -> Box:
        """The rows of all batches of a group."""
        return self._box(work.position)

    def panels(self, position: Position) -> Sequence[Panels]:
        """The keys and values of a group of batches."""
        free = (*self.beside, *self.keys)
        keys = self.first.panels(self.key_operand, free, self.first_steps, position)
        there, columns = self.beyond(position), (*self.beside_last, *self.columns)
        values = self.last.panels(self.value_operand, columns, self.last_steps, there)
        return [(keys, values)]

    def begun(self, work: Work) -> dict[Reference, Access]:
        """Scores of all batches of a group, one after the other."""
        ((keys, _),) = work.panels
        free = (*self.beside, *work.tile)
        queries = self.first.panels(self.query_operand, free, self.first_steps, work.position)
        tile, count = (work.tile, tuple(self.keys)), size_of(self.keys)
        total = self.ring(size_of(work.tile), len(self.places) * count, FLOAT32)
        for index, at in enumerate(self.places):
            there = shifted(work.position, tuple(at.items()))
            dst = tile_access(total, [count], [1], offset=index * count)
            self.add_scores((queries, keys), tile, there, dst)
        scores = tile_access(total, [len(self.places) * count], [1])
        if not self.first.is_read_in_psum():
            scores = self.first.evicted(work.tile, self._box(work.position).free, scores)
        return {**self.same, Reference(0, is_input=True): scores}

    def multiply(self, work: Work, weights: Access, known: Mapping[Reference, Access]) -> None:
        """Weights times values for each batch, and what follows for all of them."""
        rows, ((_, values),) = size_of(work.tile), work.panels
        count, width, column = size_of(self.keys), size_of(self.columns), tuple(self.columns)
        starts = [index * count for index in range(len(self.places))]
        turned = self.turned(rows, weights, self.last_steps, starts)
        there = self.beyond(work.position)
        total = self.builder.tile((rows, len(starts) * width), FLOAT32, Memory.PSUM, name="sum")
        for index, (_, at) in enumerate(tiles(self.beside_last, 1)):
            here = shifted(there, tuple(at.items()))
            dst = tile_access(total, [width], [1], offset=index * width)
            self.add_products(turned[index], values, (column, here), dst)
        sums = tile_access(total, [len(starts) * width], [1])
        columns = (*self.beside_last, *column)
        self.last.finish(self.rows_of(work), columns, there, sums, known)
