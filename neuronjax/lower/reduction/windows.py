"""`reduce_window` and `select_and_scatter`: pooling, its gradient, and running sums.

What slides lies within partitions, everything else on them. A plain reduction of floating-point
numbers is one instruction that walks over all windows; other regions see the windows side by side.
Where a tile would not fit, windows are what a transfer from HBM walks over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import REDUCERS
from neuronjax.lower.chain.boxes import Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.slide import Slide
from neuronjax.lower.chain.sweep import lanes, tile
from neuronjax.lower.control import host
from neuronjax.lower.operations import reducer
from neuronjax.lower.reduction import running
from neuronjax.lower.reduction.reduce import halved, immediate, initial, reduce_views
from neuronjax.lower.reduction.window import Windows, windows_of
from neuronjax.lower.region import apply, fingerprint, is_emittable, scratch
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, dense_strides, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.machine.specs import ACCESS_DIMS
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp
from neuronjax.program.vector_engine import (
    TensorReduce,
)


def padded(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Windows over operands that have been padded; running sums stay as they are."""
    windows = windows_of(op)
    if not windows.is_padded or running.dimension(op, windows) is not None:
        return None
    if not is_emittable(op.regions[0]):
        return None
    count = len(op.results)
    operands = [
        _pad(writer, value, init, windows)
        for value, init in zip(op.operands[:count], op.operands[count:], strict=True)
    ]
    attributes = {
        "window_dimensions": windows.sizes,
        "window_strides": windows.strides,
        "window_dilations": windows.dilations,
    }
    return writer.several(
        op.name,
        (*operands, *op.operands[count:]),
        [value.spec for value in op.results],
        op.regions,
        attributes,
    )


def _pad(writer: Writer, value: Value, init: Value, windows: Windows) -> Value:
    interior = tuple(dilation - 1 for dilation in windows.base_dilations)
    shape = [
        low + high + (max(size, 1) - 1) * (between + 1) + min(size, 1)
        for size, between, (low, high) in zip(value.shape, interior, windows.padding, strict=True)
    ]
    return writer.add(
        "pad", value, init, shape=shape,
        edge_padding_low=tuple(low for low, _ in windows.padding),
        edge_padding_high=tuple(high for _, high in windows.padding),
        interior_padding=interior,
    )  # fmt: skip


def reduce_window(scope: Scope, op: Op) -> None:
    """Windows of any region, unless it is more than element-wise code."""
    (region,) = op.regions
    if not is_emittable(region):
        host.lower(scope, op)
        return
    count = len(op.results)
    windows = windows_of(op)
    inits = op.operands[count:]
    views = [scope.view(value) for value in op.operands[:count]]
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    axis = running.dimension(op, windows)
    if axis is not None:
        running.scan(scope, op, region, views, axis, windows.padding[axis][1] > 0, inits, results)
    elif _fits(op, windows, views, scope.tuning.row_bytes):
        _in_tiles(scope, op, region, views, windows, inits, results)
    else:
        seen = [_overlapping(view, windows, op.results[0].shape) for view in views]
        rank = len(windows.sizes)
        reduce_views(scope, op, region, seen, range(rank, 2 * rank), inits, results)


def _overlapping(view: View, windows: Windows, shape: Sequence[int]) -> View:
    """Places of windows, then elements of each."""
    places = (stride * step for stride, step in zip(view.strides, windows.strides, strict=True))
    within = (stride * step for stride, step in zip(view.strides, windows.dilations, strict=True))
    return replace(view, shape=(*shape, *windows.sizes), strides=(*places, *within))


def _plain(op: Op) -> AluOp | None:
    """The operator of `tensor_reduce` that does it."""
    dtype = op.results[0].dtype
    name = reducer(op) if len(op.results) == 1 else None
    is_short = elementwise.is_float(dtype) and dtype.itemsize > 1
    return REDUCERS.get(name or "") if is_short and name not in ("or", "and") else None


def _fits(op: Op, windows: Windows, views: Sequence[View], row_bytes: int) -> bool:
    sliding = windows.sliding
    if 2 * len(sliding) > ACCESS_DIMS:
        return False
    width = sum(bytes_of(view.buffer.dtype) for view in views)
    area = math.prod(op.operands[0].shape[dim] for dim in sliding)
    places = math.prod(op.results[0].shape[dim] for dim in sliding)
    inside = 2 if _plain(op) else 3 * math.prod(windows.sizes)
    return width * (2 * area + inside * places) <= row_bytes


def _in_tiles(
    scope: Scope,
    op: Op,
    region: Graph,
    views: Sequence[View],
    windows: Windows,
    inits: Sequence[Value],
    results: Sequence[View],
) -> None:
    constants = [immediate(value) for value in inits]
    loaded = [scope.view(v) for v, known in zip(inits, constants, strict=True) if known is None]
    count, operator = len(views), _plain(op)

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        given = iter(seen[2 * count :])
        firsts = [next(given) if known is None else known for known in constants]
        slide = Slide(builder, windows.sliding, seen[: 2 * count])
        _Pooling(slide, region, windows, operator, firsts, count).run()

    key = ("reduce_window", fingerprint(region), windows, tuple(map(repr, constants)))
    scope.kernel(op.name, [op], key, [*views, *results, *loaded], [], write)


@dataclass
class _Pooling:
    """Operands are values 0 to count - 1, results the next ones."""

    slide: Slide
    region: Graph
    windows: Windows
    operator: AluOp | None
    firsts: Sequence[View | Immediate]
    count: int

    def run(self) -> None:
        self.slide.sweep.run(self._box, self.slide.sweep.lanes())

    def _box(self, region: Region, position: Position) -> None:
        builder = self.slide.builder
        tiles = [self.slide.load(number, region, position) for number in range(self.count)]
        walks = [self._walk(tile) for tile in tiles]
        places = math.prod(self.slide.sizes(self.count))
        if not self.slide.sliding:  # each window is an element
            parts = tiles
        elif self.operator is not None:
            part = tile(builder, lanes(region), (places,), tiles[0].element_type)
            (walk,) = walks
            reduced = TensorReduce(
                dst=part, op=self.operator, data=walk, axes=len(self.slide.sliding)
            )
            builder.emit(reduced)
            parts = [part]
        else:
            sides = [scratch(builder, walk) for walk in walks]
            for side, walk in zip(sides, walks, strict=True):
                elementwise.copy(builder, side, walk)
            parts = halved(builder, self.region, sides, places)
        totals = [
            initial(builder, first, lanes(region), places, part.element_type)
            for first, part in zip(self.firsts, parts, strict=True)
        ]
        sums = [scratch(builder, part) for part in totals]
        apply(builder, self.region, (*totals, *parts), sums)
        for number, total in enumerate(sums):
            self.slide.store(self.count + number, region, position, total)

    def _walk(self, data: Access) -> Access:
        """Places of windows, then the elements of each, in a tile."""
        sizes = self.slide.sizes(0)
        steps = dense_strides(sizes)
        sliding = self.slide.sliding
        dims = [
            *(
                (count, step * self.windows.strides[dim])
                for count, step, dim in zip(
                    self.slide.sizes(self.count), steps, sliding, strict=True
                )
            ),
            *(
                (self.windows.sizes[dim], step * self.windows.dilations[dim])
                for step, dim in zip(steps, sliding, strict=True)
            ),
        ]
        return replace(data, dims=tuple(Dim(stride, size) for size, stride in dims))


RULES = {"reduce_window": reduce_window}
"""Operation -> rule."""

REWRITES = {"reduce_window": padded}
"""Operation -> what it is in terms of others."""
