"""`reduce` of any monoid: regions of several operations, several operands, exact integers.

Rows of the reduced dimensions lie within partitions. A row is halved until one element is left:
neighbours are combined, left with right, by the region as element-wise code. Where few rows would
leave partitions idle, a first pass reduces parts of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Chunk, Region
from neuronjax.lower.chain.positions import Position, nest, shifted
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes, tile
from neuronjax.lower.control import host
from neuronjax.lower.operations import is_splat, peel
from neuronjax.lower.region import apply, fingerprint, is_emittable, scratch
from neuronjax.lower.scope import Scope
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, walk, whole_view
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer, Dim, Immediate, Scalar


def reduce(scope: Scope, op: Op) -> None:
    """The operation, unless its region is more than element-wise code."""
    (region,) = op.regions
    if not is_emittable(region):
        host.lower(scope, op)
        return
    count = len(op.results)
    inits = op.operands[count:]
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    if not math.prod(op.operands[0].shape):
        for init, result in zip(inits, results, strict=True):
            scope.copy(scope.view(init).broadcast(result.shape, ()), result, op)
        return
    views = [scope.view(value) for value in op.operands[:count]]
    reduce_views(scope, op, region, views, op.attributes["dimensions"], inits, results)


def reduce_views(
    scope: Scope,
    op: Op,
    region: Graph,
    views: Sequence[View],
    dimensions: Sequence[int],
    inits: Sequence[Value],
    results: Sequence[View],
) -> None:
    """results = init combined with `views` reduced over `dimensions`."""
    split = _split(views[0].shape, dimensions, scope.tuning)
    if split:
        axis, parts = split
        views = [view.split(axis, parts) for view in views]
        dims = [dim + (dim > axis) for dim in dimensions if dim != axis] + [axis + 1]
        kept = [size for dim, size in enumerate(views[0].shape) if dim not in dims]
        middle = [
            whole_view(scope.scratch(kept, view.buffer.dtype, "part"), tuple(kept))
            for view in views
        ]
        _pass(scope, op, region, views, sorted(dims), None, middle)
        views, dimensions = middle, [sum(dim not in dims for dim in range(axis))]
    _pass(scope, op, region, views, dimensions, inits, results)


def _split(
    shape: Sequence[int], dimensions: Sequence[int], tuning: Tuning
) -> tuple[int, int] | None:
    """The reduced dimension to cut, and in how many parts, so that more partitions work."""
    row = math.prod(shape[dim] for dim in dimensions)
    kept = math.prod(shape) // row
    room = PARTITIONS // kept
    if room < 2 or row < tuning.two_pass_row:
        return None
    axis = next(dim for dim in dimensions if shape[dim] > 1)
    fitting = [
        parts
        for parts in range(2, shape[axis] + 1)
        if shape[axis] % parts == 0 and row // parts <= tuning.tile_elements
    ]
    if not fitting:
        return None
    return axis, min(fitting, key=lambda parts: abs(parts - room))


def _pass(
    scope: Scope,
    op: Op,
    region: Graph,
    views: Sequence[View],
    dimensions: Sequence[int],
    inits: Sequence[Value] | None,
    results: Sequence[View],
) -> None:
    constants = [immediate(value) for value in inits or ()]
    loaded = [
        scope.view(value)
        for value, known in zip(inits or (), constants, strict=True)
        if known is None
    ]
    count, shape = len(views), views[0].shape
    inner = frozenset(dimensions)

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        sources, targets, given = seen[:count], seen[count : 2 * count], iter(seen[2 * count :])
        firsts = [next(given) if known is None else known for known in constants]
        every = tuple(range(len(shape)))
        kept = tuple(dim for dim in every if dim not in inner)
        swept = [Swept(view, every) for view in sources]
        swept += [Swept(view, kept) for view in targets]
        sweep = Sweep(builder, shape, inner, swept)
        _Reduction(sweep, region, count, firsts).run()

    key = ("reduce", fingerprint(region), tuple(sorted(inner)), tuple(map(repr, constants)))
    scope.kernel(op.name, [op], key, [*views, *results, *loaded], [], write)


def immediate(value: Value) -> Immediate | None:
    """The number of a scalar that is a constant."""
    base, _ = peel(value)
    if not is_splat(base):
        return None
    assert base.producer is not None
    return Immediate(base.producer.attributes["value"].flat[0].item())


@dataclass
class _Reduction:
    """A pass: operands are values 0 to count - 1 of the sweep, results the next ones."""

    sweep: Sweep
    region: Graph
    count: int
    firsts: Sequence[View | Immediate]

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    def run(self) -> None:
        self.sweep.run(self._box)

    def _box(self, region: Region, position: Position) -> None:
        rows = math.prod(axis.size for axis in region.free)
        if not self.firsts:
            (chunk,) = region.chunks
            totals = self._part(region, chunk, position)
        else:
            totals = [
                initial(self.builder, first, lanes(region), rows, value.view.buffer.dtype)
                for first, value in zip(self.firsts, self.sweep.values, strict=False)
            ]
            for chunk in region.chunks:
                self._chunk(region, chunk, position, totals)
        for number, total in enumerate(totals):
            self.sweep.store(self.count + number, region, region.free, position, total)

    def _chunk(
        self, region: Region, chunk: Chunk, position: Position, totals: Sequence[Access]
    ) -> None:
        def body(at: Position) -> None:
            part = self._part(region, chunk, at)
            sums = [scratch(self.builder, total) for total in totals]
            apply(self.builder, self.region, (*totals, *part), sums)
            for total, new_total in zip(totals, sums, strict=True):
                elementwise.copy(self.builder, total, new_total)

        nest(self.builder, chunk.loops, shifted(position, chunk.base), body)

    def _part(self, region: Region, chunk: Chunk, position: Position) -> list[Access]:
        """The elements of a chunk, reduced to one of each row."""
        free = (*region.free, *chunk.free)
        tiles = [self.sweep.load(n, region, free, position) for n in range(self.count)]
        rows = math.prod(axis.size for axis in region.free)
        return halved(self.builder, self.region, tiles, rows)


def initial(
    builder: KernelBuilder,
    first: View | Immediate,
    partitions: int,
    count: int,
    dtype: ElementType,
) -> Access:
    """A tile of `count` initial values in each partition."""
    total = tile(builder, partitions, (count,), dtype)
    given: Scalar
    if isinstance(first, Immediate):
        given = first
    else:
        loaded = tile(builder, partitions, (1,), dtype)
        everywhere = walk(first.buffer, first.offset, (partitions,), (0,))
        builder.emit(DmaCopy(dst=loaded, src=everywhere))
        given = replace(loaded, dims=(Dim(0, count),))
    elementwise.fill(builder, total, given)
    return total


def halved(builder: KernelBuilder, region: Graph, tiles: list[Access], rows: int) -> list[Access]:
    """Rows within each partition, side by side in dense tiles, reduced to one element each."""
    size = tiles[0].free_elements // rows
    while size > 1:
        pairs, left = divmod(size, 2)
        halves = [
            tile(builder, access.partitions, (rows * (pairs + left),), access.element_type)
            for access in tiles
        ]
        even = [_every(access, rows, size, pairs, 2) for access in tiles]
        odd = [_every(access, rows, size, pairs, 2, 1) for access in tiles]
        made = [_every(half, rows, pairs + left, pairs) for half in halves]
        apply(builder, region, (*even, *odd), made)
        if left:
            for old, new in zip(tiles, halves, strict=True):
                last = _every(old, rows, size, 1, 1, size - 1)
                elementwise.copy(builder, _every(new, rows, pairs + 1, 1, 1, pairs), last)
        tiles, size = halves, pairs + left
    return tiles


def _every(
    access: Access, rows: int, size: int, count: int, step: int = 1, first: int = 0
) -> Access:
    """`count` elements of each row of `size`, from `first` on."""
    part = tile_access(access.buffer, (rows, count), (size, step), offset=first)
    return replace(access, dims=part.dims, offset=part.offset)


RULES = {"reduce": reduce}
"""Operation -> rule."""
