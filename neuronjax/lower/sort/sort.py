"""`sort`: rows lie within partitions, or few long ones over several, and a network sorts them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Region
from neuronjax.lower.chain.sweep import Position, Sweep, Swept
from neuronjax.lower.control import host
from neuronjax.lower.rates import Rates
from neuronjax.lower.region import fingerprint, is_emittable
from neuronjax.lower.scope import Scope
from neuronjax.lower.sort.network import Network
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, walk, whole_view
from neuronjax.lower.write.builder import KernelBuilder, room_of, tile_access
from neuronjax.machine.specs import PARTITIONS, WORD_BYTES, CoreSpec
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Access, Buffer, Immediate

_TILES = 3
"""Tiles that an operation of a comparator takes at most, in words."""
_COPIES = 2
"""Copies of a pair's elements: the partner's, and one that is kept while they change places."""


def sort(scope: Scope, op: Op) -> None:
    """All operands in the order of the comparator."""
    (comparator,) = op.regions
    axis = op.attributes.get("dimension", -1) % len(op.operands[0].shape)
    views = [scope.view(value) for value in op.operands]
    core, dtypes = scope.unit.target.core, [view.buffer.dtype for view in views]
    size, rows = _row_size(views[0], axis)
    if not is_emittable(comparator) or size > longest_row(
        core, scope.tuning, dtypes, comparator, rows
    ):
        host.lower(scope, op)
        return
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    sort_views(scope, op, comparator, views, axis, results)


def _row_size(view: View, axis: int) -> tuple[int, int]:
    """The number of elements of a row along `axis`, and the number of rows."""
    return view.shape[axis], math.prod(view.shape) // view.shape[axis]


def longest_row(
    core: CoreSpec, tuning: Tuning, dtypes: Sequence[ElementType], comparator: Graph, rows: int
) -> int:
    """The greatest number of elements of each of `rows` rows that can be sorted on engines."""
    return max(
        spread * _widest(core, tuning, dtypes, comparator, _pieces(tuning, spread)[-1])
        for spread in _spreads(rows)
    )


def _pieces(tuning: Tuning, spread: int) -> Sequence[int]:
    """Returns how many pairs may be compared at once, the most first.

    Rows over several partitions take no small pieces: an order for loops over many of them takes
    a minute to find.
    """
    fractions = (1, 2, 4, 8, 16, 32, 64) if spread == 1 else (1, 2, 4)
    return [tuning.sort_piece // fraction for fraction in fractions]


def _spreads(rows: int) -> Sequence[int]:
    """Returns over how many partitions each of so many rows may lie."""
    most = PARTITIONS >> (rows - 1).bit_length()
    return [1 << power for power in range(max(most, 1).bit_length())]


def _widest(
    core: CoreSpec, tuning: Tuning, dtypes: Sequence[ElementType], comparator: Graph, piece: int
) -> int:
    """The most elements that a partition can have, of which `piece` pairs are compared at once."""
    width = sum(map(bytes_of, dtypes)) + WORD_BYTES
    pair = len(comparator.operations) * _TILES * WORD_BYTES + _COPIES * width
    room = room_of(core, tuning) - piece * pair
    return 1 << int(math.log2(max(room, width) / width))


@dataclass(frozen=True)
class _Plan:
    """How rows lie: over `spread` partitions, `width` elements in each, of which `piece` pairs are
    compared at once."""

    spread: int
    width: int
    piece: int

    def time(self, rates: Rates, tiles: int, operations: int) -> float:
        """The time in ns for tiles of operands and places, by a comparator of so many operations.

        Of each step all instructions wait for another; partners in other partitions are on their
        way to and from HBM.
        """
        instructions = 2 * operations + 3 * tiles + _INSTRUCTIONS
        far = math.comb(self.spread.bit_length(), 2)
        all_steps = math.comb((self.spread * self.width).bit_length(), 2)
        step = instructions * rates.step_ns(max(1, self.width // 2))
        return all_steps * step + far * (2 * tiles * rates.transfer_ns + step)


_INSTRUCTIONS = 5
"""Instructions that join the two answers of a comparator, places and padding."""


def _best_plan(scope: Scope, views: Sequence[View], axis: int, comparator: Graph) -> _Plan:
    """The fastest plan of those that fit."""
    core, dtypes = scope.unit.target.core, [view.buffer.dtype for view in views]
    size, rows = _row_size(views[0], axis)
    padded = 1 << (size - 1).bit_length()
    plans: list[_Plan] = []
    for spread in _spreads(rows):
        width = -(-padded // spread)
        fitting = (
            piece
            for piece in _pieces(scope.tuning, spread)
            if width <= _widest(core, scope.tuning, dtypes, comparator, piece)
        )
        plans += [_Plan(spread, width, piece) for piece in [next(fitting, 0)] if piece]
    operations, tiles = len(comparator.operations), len(views) + 1
    return min(plans, key=lambda plan: plan.time(scope.unit.rates, tiles, operations))


def sort_views(
    scope: Scope,
    op: Op,
    comparator: Graph,
    views: Sequence[View],
    axis: int,
    results: Sequence[View],
) -> None:
    """results = the first elements of the sorted rows of `views` along `axis`."""
    count, shape = len(views), views[0].shape
    kept = results[0].shape[axis]
    dims = tuple(range(len(shape)))
    plan = _best_plan(scope, views, axis, comparator)
    size, rows = _row_size(views[0], axis)
    dtypes = [*(view.buffer.dtype for view in views), FLOAT32]
    elements = (rows * plan.spread * plan.width,)
    exchanges = [scope.scratch(elements, dtype) for dtype in dtypes] if plan.spread > 1 else []

    def write(builder: KernelBuilder, seen: list[View], buffers: list[Buffer]) -> None:
        if plan.spread > 1:
            last = [view.transposed([*dims[:axis], *dims[axis + 1 :], axis]) for view in seen]
            _sort_spread_rows(builder, comparator, last[:count], last[count:], plan, buffers)
            return
        swept = [Swept(view, dims) for view in seen]
        sweep = Sweep(builder, shape, frozenset({axis}), swept, words=2, whole=True)
        _Sort(sweep, comparator, count, size, kept, plan).run()

    key = ("sort", fingerprint(comparator), axis, kept, plan)
    scope.kernel(op.name.rpartition(".")[2], [op], key, [*views, *results], exchanges, write)


@dataclass
class _Sort:
    """Operands are values 0 to count - 1 of the sweep, results the next ones."""

    sweep: Sweep
    comparator: Graph
    count: int
    size: int
    kept: int
    plan: _Plan

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    def run(self) -> None:
        self.sweep.run(self._box)

    def _box(self, region: Region, position: Position) -> None:
        (chunk,) = region.chunks
        rows, width = math.prod(axis.size for axis in region.free), self.plan.width
        tiles = [self._load(number, region, chunk.free, position) for number in range(self.count)]
        if self.size > 1:
            Network(
                self.builder, self.comparator, tiles, rows, width, self.size, self.plan.piece
            ).sort()
        for number, tile in enumerate(tiles):
            kept = _columns(tile, rows, width, 0, self.kept)
            axes = [replace(axis, size=self.kept) for axis in chunk.free]
            free = (*region.free, *axes)
            self.sweep.store(self.count + number, region, free, position, kept)

    def _load(self, number: int, region: Region, row: Sequence[Axis], position: Position) -> Access:
        rows, width = math.prod(axis.size for axis in region.free), self.plan.width
        src = self.sweep.hbm(number, [*region.partitions, *region.free, *row], position)
        tile = self.sweep.tile(region, (rows, width), src.element_type)
        self.builder.emit(DmaCopy(dst=_columns(tile, rows, width, 0, self.size), src=src))
        if width > self.size:
            rest = _columns(tile, rows, width, self.size, width - self.size)
            elementwise.fill(self.builder, elementwise.as_bits(rest), Immediate(0))
        return tile


def _columns(tile: Access, rows: int, size: int, first: int, count: int) -> Access:
    """`count` elements of each row of `size`, from `first` on."""
    return tile_access(tile.buffer, (rows, count), (size, 1), offset=first)


def _sort_spread_rows(
    builder: KernelBuilder,
    comparator: Graph,
    views: Sequence[View],
    results: Sequence[View],
    plan: _Plan,
    exchanges: Sequence[Buffer],
) -> None:
    """Sorts all rows at once, each over partitions of its own; rows are the last dimension."""
    size, rows = _row_size(views[0], -1)
    tiles: list[Access] = []
    for view in views:
        buffer = builder.tile((rows * plan.spread, plan.width), view.buffer.dtype)
        tile = tile_access(buffer, (plan.width,), (1,))
        if size < plan.spread * plan.width:
            elementwise.fill(builder, elementwise.as_bits(tile), Immediate(0))
        for part, src in _parts_of_rows(tile, view, plan):
            builder.emit(DmaCopy(dst=part, src=src))
        tiles.append(tile)
    Network(
        builder, comparator, tiles, 1, plan.width, size, plan.piece, plan.spread, exchanges
    ).sort()
    for tile, result in zip(tiles, results, strict=True):
        for part, dst in _parts_of_rows(tile, result, plan):
            builder.emit(DmaCopy(dst=dst, src=part))


def _parts_of_rows(tile: Access, view: View, plan: _Plan) -> Iterator[tuple[Access, Access]]:
    """Where the elements of rows lie in a tile and in HBM: full partitions, then the rest."""
    *outer, size = view.shape
    full, rest = divmod(size, plan.width)
    stride = view.strides[-1]
    for number, index in enumerate(np.ndindex(*outer)):
        start = view.offset + sum(map(int.__mul__, index, view.strides))
        first = number * plan.spread
        for partition, shape in ((first, (full, plan.width)), (first + full, (1, rest))):
            if math.prod(shape):
                where = start + (partition - first) * plan.width * stride
                yield (
                    tile_access(
                        tile.buffer, shape[1:], (1,), partition=partition, partitions=shape[0]
                    ),
                    walk(view.buffer, where, shape, (plan.width * stride, stride)),
                )


RULES = {"sort": sort}
"""Operation -> rule."""
