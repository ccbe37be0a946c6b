"""Writing attention as one kernel: rows of scores and weights stay in SBUF.

For 128 queries at a time, the scores of all keys are computed, the chain of operations on their
rows runs, and the weights are transposed through the array to be multiplied with the values.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import is_from_identity
from neuronjax.lower.chain.boxes import Axis, Box, size_of
from neuronjax.lower.chain.elementwise import inverse_of
from neuronjax.lower.chain.positions import Position, nest, origin, shifted
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.product.panels import Panel, blocks, tiles
from neuronjax.lower.product.product import ProductWriter
from neuronjax.lower.product.steps import Batch, Step
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.program.affine import ZERO, Affine, Flag
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Access, Buffer, Immediate, Memory
from neuronjax.program.operators import AluOp
from neuronjax.program.tensor_engine import Matmul, TensorTranspose
from neuronjax.program.vector_engine import TensorCopy, TensorReduce, TensorScalarReduce

_SCALES = frozenset({"multiply", "divide"})
"""Operations that may come first, while scores leave PSUM."""


@dataclass(frozen=True)
class Weights:
    """The weights as an operand of the last product."""

    #: Whether keys are columns of the first product, weights the left operand of the last one.
    keys_are_right: bool
    is_left: bool
    #: Dimension of the last product -> dimension of the first one.
    dims: tuple[tuple[int, int], ...]
    reference: Reference


Turned = tuple[int, tuple[tuple[int, int], ...], Access]
"""Weights with keys on partitions: number of the step, position of the keys, tile."""
Panels = tuple[list[Panel], list[Panel]]
"""Of keys, and of values."""


@dataclass(frozen=True)
class Work:
    """The work on at most 128 queries: their place, and the panels of their batch's keys and
    values.

    There is a pair of them for each part of the keys that is held.
    """

    tile: tuple[Axis, ...]
    position: dict[int, Affine]
    panels: Sequence[Panels]


@dataclass
class AttentionWriter:
    """Writes the kernel: `first` makes scores, `last` multiplies what becomes of them."""

    builder: KernelBuilder
    first: ProductWriter
    last: ProductWriter
    weights: Weights
    #: The first index in some dimensions of the first product.
    start: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        product, last = self.first.product, self.last.product
        by_right = self.weights.keys_are_right
        self.keys = product.axes(product.right if by_right else product.left)
        self.queries = product.axes(product.left if by_right else product.right)
        self.key_operand = self.first.right if by_right else self.first.left
        self.query_operand = self.first.left if by_right else self.first.right
        self.value_operand = self.last.right if self.weights.is_left else self.last.left
        self.columns = last.axes(last.right if self.weights.is_left else last.left)
        self.first_steps, self.last_steps = self.first.steps(), self.last.steps()

    @property
    def banks(self) -> int:
        """Banks of PSUM that take turns: one is read while the other is written."""
        return 2

    @property
    def tiles_together(self) -> int:
        """Tiles of queries of one batch that share what is loaded."""
        return 2

    def origin(self) -> Position:
        """Returns the position in the first product at which the writer begins."""
        return origin(len(self.first.product.sizes), self.start)

    def write(self) -> None:
        """The kernel."""
        product, position = self.first.product, self.origin()
        batches = product.batches
        most = self.builder.tuning.attention_batches if batches else 1
        count = next((n for n in range(most, 1, -1) if batches[-1].size % n == 0), 1)
        if size_of(self.queries) <= PARTITIONS and count > 1:
            step = batches[-1].steps
            fewer = Batch(batches[-1].size // count, tuple((dim, count * n) for dim, n in step))
            some = functools.partial(self._batches, step, count)
            nest(self.builder, (*batches[:-1], fewer), position, some)
        else:
            nest(self.builder, batches, position, self.of_batch)

    def _batches(
        self, step: tuple[tuple[int, int], ...], count: int, position: dict[int, Affine]
    ) -> None:
        """Some batches of few queries."""
        works = []
        for number in range(count):
            at = shifted(position, tuple((dim, number * n) for dim, n in step))
            works.append(Work(tuple(self.queries), at, self.panels(at)))
        self.side_by_side(works)

    def panels(self, position: Position) -> Sequence[Panels]:
        """All keys and values of one batch."""
        keys = self.first.panels(self.key_operand, self.keys, self.first_steps, position)
        there = self.beyond(position)
        values = self.last.panels(self.value_operand, self.columns, self.last_steps, there)
        return [(keys, values)]

    def of_batch(self, position: Position) -> None:
        """All queries of one batch: keys and values stay."""
        panels = self.panels(position)
        for block in blocks(self.queries, PARTITIONS):
            *around, last = block.loops or (None,)
            start = shifted(position, block.base)
            if last is None:
                self.side_by_side([Work(block.tile, start, panels)])
                continue
            shared = min(self.tiles_together, last.size)
            whole = Axis(last.dim, last.size // shared, shared * last.step)
            body = functools.partial(self._tiles, block.tile, last, shared, panels)
            nest(self.builder, (*around, whole), start, body)
            if rest := last.size % shared:
                end = shifted(start, ((last.dim, (last.size - rest) * last.step),))
                body = functools.partial(self._tiles, block.tile, last, rest, panels)
                nest(self.builder, around, end, body)

    def _tiles(
        self, tile: tuple[Axis, ...], axis: Axis, count: int, panels: Sequence[Panels],
        position: dict[int, Affine],
    ) -> None:  # fmt: skip
        """Some tiles of queries of one batch, along an axis."""
        places = [((axis.dim, number * axis.step),) for number in range(count)]
        self.side_by_side([Work(tile, shifted(position, place), panels) for place in places])

    def side_by_side(self, works: Sequence[Work]) -> None:
        """Scores of all of them before anything waits for what becomes of the first."""
        given = [self.begun(work) for work in works]
        for work, scores in zip(works, given, strict=True):
            self._finish(work, scores)

    def beyond(self, position: Position) -> dict[int, Affine]:
        """The position in the last product."""
        there = origin(len(self.last.product.sizes))
        for dim, axis in self.weights.dims:
            there[dim] = position[axis]
        return there

    def begun(self, work: Work) -> dict[Reference, Access]:
        """Scores, or what their first operation makes of them."""
        ((keys, _),) = work.panels
        return self._scores(work.tile, (self.queries_of(work), keys), work.position)

    def queries_of(self, work: Work) -> list[Panel]:
        """The panels of some queries."""
        return self.first.panels(self.query_operand, work.tile, self.first_steps, work.position)

    def _is_scaled(self) -> bool:
        """Whether the first operation, and nothing else, reads scores and takes a constant."""
        program, scores = self.first.emitter.program, Reference(0, is_input=True)
        users = [node for node in program.nodes if scores in node.operands]
        return (
            users == list(program.nodes[:1])
            and storage_of(self.first.result).dtype == FLOAT32
            and users[0].name in _SCALES
            and any(isinstance(operand, Immediate) for operand in users[0].operands)
            and all(output.value != scores for output in program.outputs)
            and 0 not in self.first.emitter.shortcuts.narrowed
        )

    def _finish(self, work: Work, given: dict[Reference, Access]) -> None:
        values = self.first.emitter.values(self.box_of(work), given)
        weights = values.in_sbuf(self.weights.reference)
        known = {outer: values.node_of(inner) for outer, inner in self.shared.items()}
        self.multiply(work, weights, known)

    def box_of(self, work: Work) -> Box:
        """The rows of some queries."""
        domain = range(len(self.first.emitter.program.domain))
        return Box(work.tile, tuple(self.keys), {dim: work.position[dim] for dim in domain})

    @functools.cached_property
    def shared(self) -> dict[Reference, Reference]:
        """Inputs of what follows the last product that are rows' results: they lie in tiles.

        Sums of weights, for instance, one for each query.
        """
        inner, outer = self.first.emitter, self.last.emitter
        contracted = self.last.product.contracted
        dims = [(dim, axis) for dim, axis in self.weights.dims if dim not in contracted]
        known_values: dict[Reference, Reference] = {}
        for number, source in enumerate(outer.program.inputs):
            if source.buffer is None or not source.axes <= {dim for dim, _ in dims}:
                continue
            for output in inner.program.outputs:
                if (
                    outer.buffers[source.buffer] == inner.buffers[output.buffer]
                    and source.offset == output.offset
                    and not output.value.is_input
                    and inner.program.nodes[output.value.number].dtype == source.dtype
                    and all(source.strides[d] == output.strides[a] for d, a in dims)
                ):
                    known_values[Reference(number, is_input=True)] = output.value
        return known_values

    def _scores(
        self,
        tile: tuple[Axis, ...],
        panels: tuple[list[Panel], list[Panel]],
        position: dict[int, Affine],
    ) -> dict[Reference, Access]:
        """Scores of all keys, in the type of the first product, and their greatest if wanted."""
        rows, count = size_of(tile), size_of(self.keys)
        dtype = storage_of(self.first.result).dtype
        scores = self.builder.tile((rows, count), dtype, name="scores")
        pitch = pitches(self.keys)
        columns = list(tiles(self.keys, MOVING_COLUMNS))
        tops = self.tops(rows, len(columns))
        total = self.ring(rows, max(size_of(column) for column, _ in columns), FLOAT32)
        for index, (column, at) in enumerate(columns):
            there = shifted(position, tuple(at.items()))
            dst = tile_access(
                total,
                [size_of(column)],
                [1],
                slot=Affine(index % self.banks),
            )
            self.add_scores(panels, (tile, column), there, dst)
            start = sum(pitch[dim] * index for dim, index in at.items())
            part = tile_access(scores, [size_of(column)], [1], offset=start)
            top = None if tops is None else tile_access(tops, [1], [1], offset=index)
            self.evict(part, dst, top)
        scalars = {self.seen: tile_access(scores, [count], [1])}
        if tops is not None:
            assert self.greatest is not None
            scalars[self.greatest] = self.top_of(tops, rows)
        return scalars

    def add_scores(
        self,
        panels: tuple[Sequence[Panel], Sequence[Panel]],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        position: Position,
        dst: Access,
    ) -> None:
        """Queries times keys, in PSUM."""
        for number, step in enumerate(self.first_steps):
            ends = (number == 0, number == len(self.first_steps) - 1)
            pair = (panels[0][number], panels[1][number])
            add = functools.partial(self.first.accumulate, step, pair, tile, position, dst, ends)
            nest(self.builder, step.loops, shifted(position, step.base), add)

    def top_of(self, tops: Buffer, rows: int) -> Access:
        """The greatest of each row, from those of all parts of the keys."""
        _, count = tops.shape
        if count == 1:
            return tile_access(tops, [1], [1])
        column = self.builder.tile((rows, 1), FLOAT32, name="top")
        greatest = tile_access(column, [1], [1])
        data = tile_access(tops, [count], [1])
        self.builder.emit(TensorReduce(dst=greatest, op=AluOp.MAXIMUM, data=data))
        return greatest

    @functools.cached_property
    def seen(self) -> Reference:
        """Returns what leaves PSUM: scores, or the results of their first operation."""
        return Reference(0) if self._is_scaled() else Reference(0, is_input=True)

    @functools.cached_property
    def greatest(self) -> Reference | None:
        """The maximum of each row of what leaves PSUM, if the chain asks for it."""
        program, seen = self.first.emitter.program, self.seen
        if storage_of(self.first.result).dtype != FLOAT32 or self._factor() is None:
            return None
        for number, node in enumerate(program.nodes):
            data, *_ = node.operands
            if node.name == "reduce_maximum" and data == seen and is_from_identity(node):
                return Reference(number)
        return None

    def _factor(self) -> Immediate | None:
        """The number that scores are multiplied by while they leave PSUM."""
        if not self._is_scaled():
            return Immediate(1.0)
        node = self.first.emitter.program.nodes[0]
        left, right = node.operands
        if node.name == "divide":
            return inverse_of(right) if isinstance(right, Immediate) else None
        return (
            left if isinstance(left, Immediate) else right if isinstance(right, Immediate) else None
        )

    def tops(self, rows: int, columns: int) -> Buffer | None:
        """A tile for the greatest of each row in every part of the keys."""
        if self.greatest is None:
            return None
        return self.builder.tile((rows, columns), FLOAT32, name="tops")

    def ring(self, rows: int, columns: int, dtype: ElementType) -> Buffer:
        """Banks of PSUM that are used in turn."""
        width = self.builder.core.psum.bank_bytes // bytes_of(dtype)
        assert columns <= width
        return self.builder.tile(
            (rows, width),
            dtype,
            Memory.PSUM,
            slots=self.banks,
            name="ring",
        )

    def evict(self, part: Access, total: Access, top: Access | None) -> None:
        """Takes scores out of PSUM; the greatest of each row goes to `top`."""
        if top is not None:
            self.builder.emit(
                TensorScalarReduce(
                    dst=part, data=total, op0=AluOp.MULTIPLY, operand0=self._factor(),
                    reduce_op=AluOp.MAXIMUM, reduce_res=top,
                )
            )  # fmt: skip
            return
        if not self._is_scaled():
            self.builder.emit(TensorCopy(dst=part, src=total))
            return
        node = self.first.emitter.program.nodes[0]
        srcs = tuple(
            operand if isinstance(operand, Immediate) else total for operand in node.operands
        )
        elementwise.emit(
            elementwise.Work(
                builder=self.builder,
                name=node.name,
                attributes=dict(node.attributes),
                dst=part,
                srcs=srcs,
                operand=node.operand_dtype,
                result=node.dtype,
            )
        )

    def multiply(self, work: Work, weights: Access, known: Mapping[Reference, Access]) -> None:
        """Weights times values, and what follows."""
        rows, ((_, values),) = size_of(work.tile), work.panels
        (parts,) = self.turned(rows, weights, self.last_steps)
        there = self.beyond(work.position)
        row = self.rows_of(work)
        for column, at in tiles(self.columns, MOVING_COLUMNS):
            here = shifted(there, tuple(at.items()))
            total = self.builder.tile((rows, size_of(column)), FLOAT32, Memory.PSUM, name="sum")
            dst = tile_access(total, [size_of(column)], [1])
            self.add_products(parts, values, (column, here), dst)
            self.last.finish(row, column, here, dst, known)

    def rows_of(self, work: Work) -> tuple[Axis, ...]:
        """The queries in the last product."""
        back = {axis: dim for dim, axis in self.weights.dims}
        return tuple(Axis(back[axis.dim], axis.size, axis.step) for axis in work.tile)

    def add_products(
        self,
        parts: Sequence[Turned],
        values: Sequence[Panel],
        place: tuple[tuple[Axis, ...], Position],
        dst: Access,
        ends: tuple[Flag, Flag] = (True, True),
    ) -> None:
        """Turned weights times the values at a place; `ends`: whether sums begin and end here."""
        column, here = place
        for index, (number, at, turned) in enumerate(parts):
            moving = values[number].access(column, shifted(here, at))
            start = ends[0] if index == 0 else False
            stop = ends[1] if index == len(parts) - 1 else False
            self.builder.emit(
                Matmul(dst=dst, stationary=turned, moving=moving, start=start, stop=stop)
            )

    def turned(
        self, rows: int, weights: Access, steps: Sequence[Step], starts: Sequence[int] = (0,)
    ) -> list[list[Turned]]:
        """Weights with keys on partitions, for the keys from each element of a row on."""
        turned: list[list[Turned]] = [[] for _ in starts]
        dtype = weights.element_type
        axis_of = dict(self.weights.dims)
        pitch = pitches(self.keys)
        room = max(1, self.builder.core.psum.bank_bytes // (rows * bytes_of(dtype)))
        ring = self.ring(PARTITIONS, rows, dtype)
        turn = 0
        assert isinstance(weights.offset, Affine)
        for number, step in enumerate(steps):
            count = size_of(step.partitions)
            places = [at for _, at in tiles((*step.loops, *step.inner), 1)]
            parts = list(itertools.product(range(len(starts)), places))
            for first in range(0, len(parts), room):
                some = parts[first : first + room]
                shape = (count, len(some) * rows)
                slot, turn = Affine(turn % self.banks), turn + 1
                sbuf = self.builder.tile(shape, dtype, name="weights")
                for index, (batch, at) in enumerate(some):
                    place = tuple(shifted(_origin(step), tuple(at.items())).items())
                    indices = tuple((dim, start.base) for dim, start in place)
                    start = sum(pitch.get(axis_of.get(d, -1), 0) * n for d, n in indices)
                    data = tile_access(
                        weights.buffer,
                        [axis.size for axis in step.partitions],
                        [pitch[axis_of[axis.dim]] * axis.step for axis in step.partitions],
                        offset=weights.offset + starts[batch] + start,
                        slot=weights.slot,
                        partitions=rows,
                    )
                    start = index * rows
                    dst = tile_access(ring, [rows], [1], offset=start, partitions=count, slot=slot)
                    self.builder.emit(TensorTranspose(dst=dst, data=data))
                    part = tile_access(sbuf, [rows], [1], offset=start)
                    turned[batch].append((number, indices, part))
                total = len(some) * rows
                src = tile_access(ring, [total], [1], partitions=count, slot=slot)
                dst = tile_access(sbuf, [total], [1])
                self.builder.emit(TensorCopy(dst=dst, src=src))
        return turned


def _origin(step: Step) -> dict[int, Affine]:
    """Returns the first indices of a step, in the dimensions that it runs along."""
    axes = (*step.partitions, *step.inner, *step.loops)
    origin = dict.fromkeys([axis.dim for axis in axes] + [dim for dim, _ in step.base], ZERO)
    return shifted(origin, step.base)


def pitches(axes: Sequence[Axis]) -> dict[int, int]:
    """Elements of a dense row per index of each dimension."""
    pitches = {}
    for index, axis in enumerate(axes):
        pitches[axis.dim] = math.prod(axis.size for axis in axes[index + 1 :])
    return pitches
