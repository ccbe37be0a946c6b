"""`sort`: rows lie within partitions, or long ones over several, and a network sorts them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes
from neuronjax.lower.control import host
from neuronjax.lower.rates import Rates
from neuronjax.lower.region import fingerprint, is_emittable
from neuronjax.lower.scope import Scope
from neuronjax.lower.sort.network import Network
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, dense_strides, whole_view
from neuronjax.lower.write.builder import KernelBuilder, room_of, tile_access
from neuronjax.machine.specs import PARTITIONS, WORD_BYTES, CoreSpec
from neuronjax.program.affine import ZERO, Affine
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
    longest = longest_row(core, scope.tuning, dtypes, comparator)
    if not is_emittable(comparator) or views[0].shape[axis] > longest:
        host.lower(scope, op)
        return
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    sort_views(scope, op, comparator, views, axis, results)


def longest_row(
    core: CoreSpec,
    tuning: Tuning,
    dtypes: Sequence[ElementType],
    comparator: Graph,
    spread: int = PARTITIONS,
) -> int:
    """The greatest number of elements of a row over up to `spread` partitions that engines sort."""
    return spread * _widest(core, tuning, dtypes, comparator, _pieces(tuning)[-1])


def _pieces(tuning: Tuning) -> Sequence[int]:
    """Returns how many pairs may be compared at once, the most first.

    They are no smaller than a 4th: an order for loops over many pieces takes a minute to find.
    """
    return [tuning.sort_piece // fraction for fraction in (1, 2, 4)]


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

    def time(self, rates: Rates, rows: int, tiles: int, operations: int) -> float:
        """The time in ns for rows in tiles of operands and places, by a comparator of so many
        operations.

        Of each step all instructions wait for another; partners in other partitions are on their
        way to and from HBM.
        """
        instructions = 2 * operations + 3 * tiles + _INSTRUCTIONS
        far = math.comb(self.spread.bit_length(), 2)
        all_steps = math.comb((self.spread * self.width).bit_length(), 2)
        step = instructions * rates.step_ns(max(1, self.width // 2))
        turns = -(-rows * self.spread // (PARTITIONS * rates.cores))
        return turns * (all_steps * step + far * (2 * tiles * rates.transfer_ns + step))


_INSTRUCTIONS = 5
"""Instructions that join the two answers of a comparator, places and padding."""


def _best_plan(scope: Scope, views: Sequence[View], axis: int, comparator: Graph) -> _Plan:
    """The fastest plan of those that fit."""
    core, dtypes = scope.unit.target.core, [view.buffer.dtype for view in views]
    size = views[0].shape[axis]
    rows, padded = math.prod(views[0].shape) // size, 1 << (size - 1).bit_length()
    plans: list[_Plan] = []
    for spread in _SPREADS:
        width = -(-padded // spread)
        fitting = (
            piece
            for piece in _pieces(scope.tuning)
            if width <= _widest(core, scope.tuning, dtypes, comparator, piece)
        )
        plans += [_Plan(spread, width, piece) for piece in [next(fitting, 0)] if piece]
    operations, tiles = len(comparator.operations), len(views) + 1
    return min(plans, key=lambda plan: plan.time(scope.unit.rates, rows, tiles, operations))


_SPREADS = tuple(1 << power for power in range(PARTITIONS.bit_length()))
"""Partitions that a row may lie over."""


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
    dtypes = [*(view.buffer.dtype for view in views), FLOAT32]
    rows = math.prod(shape) // shape[axis]
    elements = (rows * plan.spread * plan.width,)
    exchanges = [scope.scratch(elements, dtype) for dtype in dtypes] if plan.spread > 1 else []

    def write(builder: KernelBuilder, seen: list[View], buffers: list[Buffer]) -> None:
        swept = [Swept(view, dims) for view in seen]
        sweep = Sweep(builder, shape, frozenset({axis}), swept, words=2, whole=True)
        _Sort(sweep, comparator, count, shape[axis], kept, plan, buffers).run()

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
    exchanges: Sequence[Buffer]

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    def run(self) -> None:
        """Sorts box by box; where a row has several partitions, boxes are of fewer rows."""
        if self.plan.spread == 1:
            self.sweep.run(self._box)
        else:
            self.sweep.run(self._spread_box, self.sweep.lanes(PARTITIONS // self.plan.spread))

    # Rows within partitions

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

    # Rows over several partitions

    def _spread_box(self, region: Region, position: Position) -> None:
        plan = self.plan
        tiles = [self._load_spread(number, region, position) for number in range(self.count)]
        domain, (inner,) = self.sweep.program.domain, self.sweep.program.reduced
        outer = [dim for dim in range(len(domain)) if dim != inner]
        first = ZERO
        for dim, stride in zip(outer, dense_strides([domain[dim] for dim in outer]), strict=True):
            first = first + position[dim] * (stride * plan.spread * plan.width)
        Network(
            self.builder, self.comparator, tiles, 1, plan.width, self.size, plan.piece,
            plan.spread, self.exchanges, first,
        ).sort()  # fmt: skip
        for number, tile in enumerate(tiles):
            for part, dst in self._parts(self.count + number, self.kept, tile, region, position):
                self.builder.emit(DmaCopy(dst=dst, src=part))

    def _load_spread(self, number: int, region: Region, position: Position) -> Access:
        plan = self.plan
        dtype = self.sweep.values[number].view.buffer.dtype
        buffer = self.builder.tile((lanes(region) * plan.spread, plan.width), dtype)
        tile = tile_access(buffer, (plan.width,), (1,))
        if self.size < plan.spread * plan.width:
            elementwise.fill(self.builder, elementwise.as_bits(tile), Immediate(0))
        for part, src in self._parts(number, self.size, tile, region, position):
            self.builder.emit(DmaCopy(dst=part, src=src))
        return tile

    def _parts(
        self, number: int, size: int, tile: Access, region: Region, position: Position
    ) -> Iterator[tuple[Access, Access]]:
        """The first elements of rows in a tile and in HBM: all at once if they fill their
        partitions, else the full partitions of each row, and then the rest."""
        spread, width = self.plan.spread, self.plan.width
        axes, (inner,) = region.partitions, self.sweep.program.reduced
        full, rest = divmod(size, width)
        if full == spread:
            row = (Axis(inner, spread, width), Axis(inner, width))
            yield tile, self.sweep.hbm(number, (*axes, *row), position)
            return
        for count, index in enumerate(np.ndindex(*(axis.size for axis in axes))):
            at = dict(position)
            for axis, step in zip(axes, index, strict=True):
                at[axis.dim] = at[axis.dim] + step * axis.step
            for first, shape in ((0, (full, width)), (full, (1, rest))):
                if math.prod(shape):
                    part = tile_access(
                        tile.buffer, shape[1:], (1,),
                        partition=count * spread + first, partitions=shape[0],
                    )  # fmt: skip
                    row = (Axis(inner, shape[0], width), Axis(inner, shape[1]))
                    begin = {**at, inner: Affine(first * width)}
                    yield part, self.sweep.hbm(number, row, begin)


def _columns(tile: Access, rows: int, size: int, first: int, count: int) -> Access:
    """`count` elements of each row of `size`, from `first` on."""
    return tile_access(tile.buffer, (rows, count), (size, 1), offset=first)


RULES = {"sort": sort}
"""Operation -> rule."""
