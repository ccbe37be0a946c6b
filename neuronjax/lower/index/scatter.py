"""`scatter`: windows of updates, combined with those of the operand that index vectors name.

Index vectors are taken 128 at a time. Where several of them name the same row, sums are made before
they go there (`row_sums.py`). Of other combinations, the first updates of each row go first, then
the second ones, and so on: every element gets them in the order of the index vectors. Windows that
overlap without being the same go one by one, as do single and great ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower import region
from neuronjax.lower.control import host
from neuronjax.lower.index import addresses, gather_table
from neuronjax.lower.index.gather import flat, shared_dimensions, vectors
from neuronjax.lower.index.gather_table import INT32, UINT32, Batch, GatherTable, Part, Starts
from neuronjax.lower.index.movement import in_place
from neuronjax.lower.index.row_sums import RowSums, equal, loaded, ranks, tile, turned
from neuronjax.lower.operations import reducer
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import is_native, storage_of
from neuronjax.lower.values.view import View, walk
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import Affine
from neuronjax.program.control import RegisterArithmetic, RegisterLoad
from neuronjax.program.dma import DmaGather, DmaScatter
from neuronjax.program.element_types import ElementType
from neuronjax.program.gpsimd_engine import CustomOp, PartitionReduce
from neuronjax.program.operand import Access, Buffer, Immediate, Register, RegisterOffset
from neuronjax.program.operators import AluOp, CustomFunction, OutOfBounds, PartitionReduction
from neuronjax.program.vector_engine import (
    Memset,
    TensorScalar,
    TensorTensor,
)


def scatter(scope: Scope, op: Op) -> None:
    """Scatters in the operands' memory where nobody else needs that, else in copies of them."""
    count = len(op.results)
    operands, indices, updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
    how = combination(op)
    if how is None:
        host.lower(scope, op)
        return
    numbers = op.attributes["scatter_dimension_numbers"]
    targets = [
        in_place(scope, op, operand, r) for operand, r in zip(operands, op.results, strict=True)
    ]
    if not all(updates[0].shape):
        return
    batch_shape, index = vectors(scope, indices, numbers["index_vector_dim"])
    sizes = _window(operands[0], updates[0], numbers)
    table = gather_table.table_of(
        targets[0], sizes, numbers["scattered_dims_to_operand_dims"],
        shared_dimensions(numbers, "input"), batch_shape, indices.dtype,
    )  # fmt: skip
    news = [_updates(scope, update, numbers, (table.vectors, *sizes)) for update in updates]
    unique = bool(op.attributes.get("unique_indices", False)) or how.is_set
    is_sorted = bool(op.attributes.get("indices_are_sorted", False))
    largest = max(targets, key=lambda view: view.buffer.dtype.storage_bits).buffer.dtype
    one_by_one = addresses.are_better(table, largest, scope.tuning) or not table.are_disjoint
    shape = (scope.tuning.index_columns, PARTITIONS)
    scratch = [] if one_by_one or unique else [scope.scratch(shape, UINT32)]

    def write(builder: KernelBuilder, views: list[View], buffers: list[Buffer]) -> None:
        work = _Scatter(
            scope, builder, table, how, views[:count], views[count : 2 * count], views[-1],
            buffers[0] if buffers else None, is_sorted,
        )  # fmt: skip
        if one_by_one:
            work.one_by_one()
        elif how.is_sum and buffers:
            RowSums(scope, builder, table, views[0], views[1], views[-1], buffers[0]).write()
        else:
            work.by_rows()

    key = (
        "scatter",
        table,
        how.is_set,
        how.is_sum,
        unique,
        is_sorted,
        region.fingerprint(op.regions[0]),
    )
    scope.kernel("scatter", [op], key, [*targets, *news, index], scratch, write)


@dataclass(frozen=True, slots=True)
class Combination:
    """How updates are combined with what is there: they replace it, are added, or a region says."""

    is_set: bool = False
    is_sum: bool = False
    graph: Graph | None = None


def combination(op: Op) -> Combination | None:
    """How a scatter combines; None: engines cannot."""
    (graph,) = op.regions
    count = len(op.results)
    if any(storage_of(value.dtype).words > 1 for value in op.results):
        return None
    if graph.results == graph.parameters[count:]:
        return Combination(is_set=True)
    if not all(is_native(value.dtype) for value in op.results) or not region.is_emittable(graph):
        return None
    sums = count == 1 and reducer(op) == "add" and op.result.dtype.name in _SUMMED
    return Combination(is_sum=True) if sums else Combination(graph=graph)


_SUMMED = frozenset({"float32", "bfloat16", "float16"})
"""Types that transfers add as an engine would."""


def _window(operand: Value, update: Value, numbers: Mapping[str, Any]) -> tuple[int, ...]:
    """The size of a window in each dimension of the operand."""
    dropped = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    sizes = iter(update.shape[d] for d in numbers["update_window_dims"])
    return tuple(1 if d in dropped else next(sizes) for d in range(len(operand.shape)))


def _updates(
    scope: Scope, update: Value, numbers: Mapping[str, Any], shape: tuple[int, ...]
) -> View:
    """Updates as [index vectors, window]."""
    inner = list(numbers["update_window_dims"])
    outer = [d for d in range(len(update.shape)) if d not in inner]
    return flat(scope, scope.view(update).along([*outer, *inner]), shape)


def usual_rounds(vectors: int, table: GatherTable, *, is_sorted: bool) -> int:
    """How many of so many index vectors name the same row, at most, as they usually do.

    Sorted ones are as many in a row as there are for each row of the table. Others are drawn at
    random: it is the greatest number of which half a row or more is expected, by the binomial
    distribution.
    """
    rows = table.rows
    if is_sorted:
        return min(vectors, -(-table.vectors // rows))
    expected = (
        (n, rows * math.comb(vectors, n) * rows**-n * (1 - 1 / rows) ** (vectors - n))
        for n in range(1, vectors + 1)
    )
    return max((n for n, of in expected if of >= 1 / 2), default=1)


@dataclass
class _Scatter:
    """Writes the kernel of a scatter."""

    scope: Scope
    builder: KernelBuilder
    table: GatherTable
    how: Combination
    targets: Sequence[View]
    updates: Sequence[View]
    index: View
    #: Row numbers on their way from partitions to free elements, if they may be equal.
    scratch: Buffer | None
    #: Whether index vectors come in the order of their rows.
    is_sorted: bool

    def by_rows(self) -> None:
        """Writes 128 windows at once."""
        starts = Starts(self.builder, self.table, self.index, checks=True)
        for batch in gather_table.batches(self.table.vectors, self.builder.tuning.index_columns):
            with self.builder.loop(batch.trips) as trip:
                base = trip * (batch.columns * batch.partitions) + batch.base
                row_starts = starts.emit(batch, base)
                if self.scratch is not None:
                    turned(self.builder, row_starts, batch, self.scratch)
                with self.builder.loop(batch.columns) as column:
                    first = column * batch.partitions + base
                    self._column(starts.column(row_starts, column), column, batch, first)

    def _column(self, where: Access, column: Affine, batch: Batch, first: Affine) -> None:
        ranks = None
        if self.scratch is not None and batch.partitions > 1:
            ranks = self._ranks(where, column)
        tiles = 2 * len(self.targets)
        most = min(
            gather_table.most_elements(self.builder, target.buffer.dtype, tiles)
            for target in self.targets
        )
        for part in gather_table.parts(
            self.table.window, most if self.how.graph is None else most // 4
        ):
            with gather_table.walked(self.builder, part) as at:
                news = [
                    loaded(self.builder, update, batch, part, first, at) for update in self.updates
                ]
                if ranks is None:
                    self._combine(news, where, where, part, at)
                else:
                    self._rounds(ranks, news, where, part, at)

    def _ranks(self, where: Access, column: Affine) -> tuple[Access, Register]:
        """The number of vectors before each that name the same row; and one more than the most."""
        assert self.scratch is not None
        emit = self.builder.emit
        rank = ranks(self.builder, equal(self.builder, self.scratch, where, column))
        valid, kept = (self._tile((where.partitions, 1)) for _ in range(2))
        limit = Immediate(self.table.rows)
        emit(CustomOp(dst=valid, function=CustomFunction.COMPARE_LT, srcs=(where, limit)))
        emit(TensorTensor(dst=kept, data1=rank, data2=valid, op=AluOp.MULTIPLY))
        return kept, self._greatest(kept)

    def _greatest(self, ranks: Access) -> Register:
        emit = self.builder.emit
        most, trips = self._tile((1, 1)), self._tile((1, 1), INT32)
        emit(PartitionReduce(dst=most, op=PartitionReduction.MAX, data=ranks))
        emit(TensorScalar(dst=trips, data=most, op0=AluOp.ADD, operand0=Immediate(1.0)))
        usual = usual_rounds(ranks.partitions, self.table, is_sorted=self.is_sorted)
        register = self.scope.unit.register(ranks.partitions, "rounds", usual)
        emit(RegisterLoad(dst=register, src=trips))
        return register

    def _rounds(
        self,
        ranks: tuple[Access, Register],
        news: list[Access],
        where: Access,
        part: Part,
        at: dict[int, Affine],
    ) -> None:
        rank, trips = ranks
        emit, count = self.builder.emit, where.partitions
        turn = self._tile((count, 1))
        emit(Memset(dst=turn, value=Immediate(0.0)))
        with self.builder.loop(trips):
            due, chosen = self._tile((count, 1), gather_table.UINT8), self._tile((count, 1), UINT32)
            emit(TensorTensor(dst=due, data1=rank, data2=turn, op=AluOp.EQUAL))
            outside = Immediate(self.table.rows)
            emit(CustomOp(dst=chosen, function=CustomFunction.SELECT, srcs=(due, where, outside)))
            self._combine(news, where, chosen, part, at)
            emit(TensorScalar(dst=turn, data=turn, op0=AluOp.ADD, operand0=Immediate(1.0)))

    def _combine(
        self,
        news: list[Access],
        where: Access,
        chosen: Access,
        part: Part,
        at: dict[int, Affine],
    ) -> None:
        """Rows `chosen` of each operand, combined with updates."""
        tables = [gather_table.rows_access(target, self.table, part, at) for target in self.targets]
        if self.how.graph is not None:
            inside = self._inside(where)
            olds = []
            for table in tables:
                old = self._tile((where.partitions, part.elements), table.element_type)
                self.builder.emit(DmaGather(dst=old, table=table, index=inside))
                olds.append(old)
            news = self._applied(self.how.graph, olds, news)
        for table, new in zip(tables, news, strict=True):
            self.builder.emit(
                DmaScatter(
                    table=table, src=new, index=chosen, accumulate=self.how.is_sum,
                    out_of_bounds=OutOfBounds.SKIP, queue=1,
                )
            )  # fmt: skip

    def _applied(self, graph: Graph, olds: list[Access], news: list[Access]) -> list[Access]:
        """What a region makes of tiles of operands and of updates."""
        results = [region.scratch(self.builder, old) for old in olds]
        region.apply(self.builder, graph, [*olds, *news], results)
        return results

    def _inside(self, where: Access) -> Access:
        """Row numbers of which those outside are replaced by the last row."""
        kept = self._tile((where.partitions, 1), UINT32)
        last = Immediate(self.table.rows - 1)
        self.builder.emit(CustomOp(dst=kept, function=CustomFunction.MINIMUM, srcs=(where, last)))
        return kept

    # One by one

    def one_by_one(self) -> None:
        """Window after window, each spread over the partitions, from an address in a register."""
        with addresses.positions(self.builder, self.table) as at:
            inside = None
            outside = self.scope.unit.register(len(self.table.components), "outside")
            addresses.zero(self.builder, outside)
            total: Register | None = None
            for component in self.table.components:
                inside = self.scope.unit.register(1, "inside")
                rows = addresses.load(
                    self.scope, self.builder, self.table, self.index, component, at, outside
                )
                if component.limit and component.step:
                    rows = addresses.scaled(self.scope, self.builder, component, rows)
                    total = addresses.plus(self.scope, self.builder, self.table, total, rows)
            start = addresses.offset(self.table, at, total)
            if inside is None:
                self._window(start, at.number)
                return
            self.builder.emit(
                RegisterArithmetic(dst=inside, op=AluOp.EQUAL, left=outside, right=Immediate(0))
            )
            with self.builder.block() as body:
                self._window(start, at.number)
            self.builder.branch(inside, body)

    def _window(self, start: RegisterOffset | Affine, number: Affine) -> None:
        if self.how.is_set:
            for target, update in zip(self.targets, self.updates, strict=True):
                step, *strides = update.strides
                src = walk(update.buffer, number * step + update.offset, self.table.window, strides)
                to = View(target.buffer, self.table.window, target.strides, target.offset)
                self.builder.copy(to.access(start), src)
            return
        work = self._divided()
        for window in _spread(work.table.window, self.builder.tuning.tile_elements):
            with (
                self.builder.loop(window.trips) as trip,
                gather_table.walked(self.builder, window.part) as at,
            ):
                at[window.dim] = trip * window.count + window.base
                work._part(window, start, number, at)

    def _divided(self) -> _Scatter:
        """The scatter with the greatest dimension of windows divided into what partitions hold, if
        it can be divided evenly among half of them or more."""
        window = self.table.window
        dim = max(range(len(window)), key=lambda d: window[d], default=0)
        size = window[dim] if window else 1
        count = max(n for n in range(1, PARTITIONS + 1) if size % n == 0)
        if size <= PARTITIONS or 2 * count < PARTITIONS:
            return self

        def divide(view: View, at: int) -> View:
            sizes, strides = list(view.shape), list(view.strides)
            sizes[at : at + 1] = count, size // count
            strides[at : at + 1] = strides[at] * (size // count), strides[at]
            return replace(view, shape=tuple(sizes), strides=tuple(strides))

        own = divide(View(self.targets[0].buffer, window, self.table.strides), dim)
        return replace(
            self,
            table=replace(self.table, window=own.shape, strides=own.strides),
            targets=[divide(view, dim) for view in self.targets],
            updates=[divide(view, dim + 1) for view in self.updates],
        )

    def _part(
        self,
        window: _Window,
        start: RegisterOffset | Affine,
        number: Affine,
        at: dict[int, Affine],
    ) -> None:
        shape = (window.count, window.part.elements)
        places: list[Access] = []
        tiles: list[Access] = []
        for view in self.targets:
            offset = addresses.shifted(
                start, gather_table.offset_of(at, view.strides) + view.offset
            )
            places.append(_spread_access(view.buffer, offset, view.strides, window))
        for view in self.updates:
            step, *strides = view.strides
            offset = number * step + gather_table.offset_of(at, strides) + view.offset
            places.append(_spread_access(view.buffer, offset, strides, window))
        for place in places:
            tile = self._tile(shape, place.element_type)
            self.builder.copy(tile, place)
            tiles.append(tile)
        if self.how.graph is not None:
            half = len(tiles) // 2
            results = self._applied(self.how.graph, tiles[:half], tiles[half:])
        else:
            old, new = tiles
            results = [self._tile(shape, old.element_type)]
            self.builder.emit(TensorTensor(dst=results[0], data1=old, data2=new, op=AluOp.ADD))
        for place, result in zip(places, results, strict=False):
            self.builder.copy(place, result)

    def _tile(self, shape: tuple[int, int], dtype: ElementType = FLOAT32) -> Access:
        return tile(self.builder, shape, dtype)


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of a window whose dimension `dim` lies on partitions: `trips` times `count`."""

    dim: int
    trips: int
    count: int
    base: int
    part: Part


def _spread(window: tuple[int, ...], most: int) -> Iterator[_Window]:
    """A window with its greatest dimension on partitions."""
    if not window:
        yield _Window(0, 1, 1, 0, Part((), (1,)))
        return
    dim = max(range(len(window)), key=lambda d: window[d])
    full, rest = divmod(window[dim], PARTITIONS)
    others = tuple(1 if d == dim else size for d, size in enumerate(window))
    for part in gather_table.parts(others, most):
        if full:
            yield _Window(dim, full, PARTITIONS, 0, part)
        if rest:
            yield _Window(dim, 1, rest, full * PARTITIONS, part)


def _spread_access(
    buffer: Buffer, start: RegisterOffset | Affine, strides: Sequence[int], window: _Window
) -> Access:
    first = strides[window.dim] if strides else 1
    return walk(buffer, start, (window.count, *window.part.sizes), (first, *(strides or (1,))))


RULES = {"scatter": scatter}
"""Operation -> rule."""
