"""`reduce_window` and `select_and_scatter`: pooling, its gradient, and running sums.

What slides lies within partitions, everything else on them. A plain reduction of floating-point
numbers is one instruction that walks over all windows; other regions see the windows side by side.
Where a tile would not fit, windows are what a transfer from HBM walks over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower import elementwise
from neuronjax.lower.builder import KernelBuilder, tile_access
from neuronjax.lower.families import host, running
from neuronjax.lower.families.reduce import halved, immediate, initial, reduce_views
from neuronjax.lower.fuse import reducer
from neuronjax.lower.region import apply, fingerprint, is_emittable, scratch
from neuronjax.lower.rewrite import Writer
from neuronjax.lower.scope import Scope
from neuronjax.lower.sweep import Position, Sweep, Swept, lanes, tile
from neuronjax.lower.tiles import REDUCERS, ROW_BYTES, Region
from neuronjax.lower.view import View, dense_strides, whole_view
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, bytes_of
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp, CustomFunction
from neuronjax.program.vector_engine import (
    CopyPredicated,
    Memset,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)

_TRUTH = INTEGERS["uint8"]
_MOST_DIMS = 4
"""Free dimensions of an access."""


@dataclass(frozen=True)
class Windows:
    """How windows slide: one number for each dimension."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def is_padded(self) -> bool:
        return any(map(any, self.padding)) or any(each != 1 for each in self.base_dilations)

    @property
    def sliding(self) -> list[int]:
        """Dimensions in which windows are more than the elements themselves."""
        plain = zip(self.sizes, self.strides, strict=True)
        return [dim for dim, (size, stride) in enumerate(plain) if size != 1 or stride != 1]


def windows_of(op: Op) -> Windows:
    """The attributes of an operation, with what is left out."""
    a = op.attributes
    sizes = a["window_dimensions"]
    ones = (1,) * len(sizes)
    padding = a.get("padding", np.zeros((len(sizes), 2), int))
    return Windows(
        sizes=sizes,
        strides=a.get("window_strides", ones),
        dilations=a.get("window_dilations", ones),
        base_dilations=a.get("base_dilations", ones),
        padding=tuple((int(low), int(high)) for low, high in padding),
    )


def padded(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Windows over operands that have been padded; running sums stay as they are."""
    windows = windows_of(op)
    if not windows.is_padded or running.dimension(op, windows) is not None:
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
    interior = tuple(each - 1 for each in windows.base_dilations)
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
    elif _fits(op, windows, views):
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


def _fits(op: Op, windows: Windows, views: Sequence[View]) -> bool:
    sliding = windows.sliding
    if 2 * len(sliding) > _MOST_DIMS:
        return False
    width = sum(bytes_of(view.buffer.dtype) for view in views)
    area = math.prod(op.operands[0].shape[dim] for dim in sliding)
    places = math.prod(op.results[0].shape[dim] for dim in sliding)
    inside = 2 if _plain(op) else 3 * math.prod(windows.sizes)
    return width * (2 * area + inside * places) <= ROW_BYTES


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


class Slide:
    """Values with sliding dimensions within partitions, and all others on them."""

    def __init__(
        self, builder: KernelBuilder, sliding: Sequence[int], views: Sequence[View]
    ) -> None:
        self.builder = builder
        self.sliding = list(sliding)
        rank = len(views[0].shape)
        kept = [dim for dim in range(rank) if dim not in self.sliding]
        self.views = views
        outer = [
            Swept(
                replace(
                    view,
                    shape=tuple(view.shape[dim] for dim in kept),
                    strides=tuple(view.strides[dim] for dim in kept),
                ),
                tuple(range(len(kept))),
            )
            for view in views
        ]
        shape = tuple(views[0].shape[dim] for dim in kept)
        self.sweep = Sweep(builder, shape, frozenset(), outer)

    def sizes(self, number: int) -> tuple[int, ...]:
        """Elements along the sliding dimensions."""
        return tuple(self.views[number].shape[dim] for dim in self.sliding)

    def hbm(self, number: int, region: Region, position: Position) -> Access:
        """All of a value that belongs to a box."""
        strides = [self.views[number].strides[dim] for dim in self.sliding]
        sizes = self.sizes(number)
        return self.sweep.hbm(number, region.partitions, position, sizes, strides)

    def load(self, number: int, region: Region, position: Position) -> Access:
        """A tile with it."""
        src = self.hbm(number, region, position)
        dst = tile(self.builder, lanes(region), self.sizes(number), src.element_type)
        self.builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def store(self, number: int, region: Region, position: Position, data: Access) -> None:
        """A tile goes where the value lies."""
        self.builder.emit(DmaCopy(dst=self.hbm(number, region, position), src=data))


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
        sweep = self.slide.sweep
        for region in sweep.lanes():
            sweep.nest(region.loops, sweep.start(region.base), partial(self._box, region))

    def _box(self, region: Region, position: Position) -> None:
        builder = self.slide.builder
        tiles = [self.slide.load(number, region, position) for number in range(self.count)]
        walks = [self._walk(each) for each in tiles]
        places = math.prod(self.slide.sizes(self.count))
        if self.operator is not None:
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


def select_and_scatter(scope: Scope, op: Op) -> None:
    """Each window picks an element; what belongs to the window is added where that lies."""
    select, scatter = op.regions
    operand, source, init = op.operands
    windows = windows_of(op)
    sliding = windows.sliding
    area = math.prod(operand.shape[dim] for dim in sliding)
    places = math.prod(source.shape[dim] for dim in sliding)
    width = operand.dtype.itemsize
    small = 3 * area * width + places * (6 * width + 16) <= ROW_BYTES
    emittable = is_emittable(select) and is_emittable(scatter) and len(sliding) <= _MOST_DIMS
    first = immediate(init)
    if not small or not emittable or first is None:
        host.lower(scope, op)
        return
    views = [scope.view(operand), scope.view(source)]
    result = whole_view(scope.result(op.result), op.result.shape)

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        _Unpooling(Slide(builder, sliding, seen), select, scatter, windows, first).run()

    key = ("select_and_scatter", fingerprint(select), fingerprint(scatter), windows, repr(first))
    scope.kernel(op.name, [op], key, [*views, result], [], write)


@dataclass(frozen=True)
class _Offset:
    """One element of every window: its number, and for each dimension the windows that have it.

    `spans` are, by dimension, the first such window, their number and the place of the element.
    """

    number: int
    spans: tuple[tuple[int, int, int], ...]


@dataclass
class _Unpooling:
    """Values: operand, source, result."""

    slide: Slide
    select: Graph
    scatter: Graph
    windows: Windows
    first: Immediate

    def run(self) -> None:
        sweep = self.slide.sweep
        for region in sweep.lanes():
            sweep.nest(region.loops, sweep.start(region.base), partial(self._box, region))

    def _box(self, region: Region, position: Position) -> None:
        builder = self.slide.builder
        operand, source = (self.slide.load(number, region, position) for number in (0, 1))
        chosen = self._choose(operand, source)
        result = scratch(builder, operand)
        elementwise.fill(builder, result, self.first)
        for offset in reversed(list(self._offsets())):
            with builder.recycling():
                self._add(offset, chosen, source, result)
        self.slide.store(2, region, position, result)

    def _offsets(self) -> Iterator[_Offset]:
        sliding = self.slide.sliding
        sizes, counts = self.slide.sizes(0), self.slide.sizes(1)
        numbers = itertools.product(*(range(self.windows.sizes[dim]) for dim in sliding))
        for number, within in enumerate(numbers):
            spans = []
            for dim, inside, size, count in zip(sliding, within, sizes, counts, strict=True):
                step, shift = self.windows.strides[dim], inside - self.windows.padding[dim][0]
                low = max(0, -(shift // step)) if shift < 0 else 0
                high = min(count - 1, (size - 1 - shift) // step)
                spans.append((low, high - low + 1, low * step + shift))
            if all(count > 0 for _, count, _ in spans):
                yield _Offset(number, tuple(spans))

    def _places(self, access: Access, offset: _Offset) -> Access:
        """The windows of an offset, in a tile with one element for each window."""
        steps = dense_strides(self.slide.sizes(1))
        start = sum(low * step for (low, _, _), step in zip(offset.spans, steps, strict=True))
        counts = [count for _, count, _ in offset.spans]
        return tile_access(access.buffer, counts, steps, offset=start)

    def _elements(self, access: Access, offset: _Offset) -> Access:
        """Their elements, in a tile like the operand's."""
        steps = dense_strides(self.slide.sizes(0))
        start = sum(place * step for (_, _, place), step in zip(offset.spans, steps, strict=True))
        strides = [
            step * self.windows.strides[dim]
            for step, dim in zip(steps, self.slide.sliding, strict=True)
        ]
        counts = [count for _, count, _ in offset.spans]
        return tile_access(access.buffer, counts, strides, offset=start)

    def _choose(self, operand: Access, source: Access) -> Access:
        """The number of the element that each window selects, -1 if it has none."""
        builder = self.slide.builder
        best = scratch(builder, source, operand.element_type)
        elementwise.fill(builder, elementwise.as_bits(best), Immediate(0))
        chosen = scratch(builder, source, FLOAT32)
        builder.emit(Memset(dst=chosen, value=Immediate(-1.0)))
        for offset in self._offsets():
            with builder.recycling():
                current, number = self._places(best, offset), self._places(chosen, offset)
                element = self._elements(operand, offset)
                better = self._better(current, element, number)
                choose(builder, current, element, better)
                here = Immediate(float(offset.number))
                builder.emit(CopyPredicated(dst=number, src=here, predicate=better))
        return chosen

    def _better(self, current: Access, element: Access, number: Access) -> Access:
        """Where `select` prefers the element, or there is none yet."""
        builder = self.slide.builder
        stays, none, better = (scratch(builder, current, _TRUTH) for _ in range(3))
        apply(builder, self.select, (current, element), [stays])
        less = AluOp.LESS
        builder.emit(TensorScalar(dst=none, data=number, op0=less, operand0=Immediate(0.0)))
        builder.emit(TensorTensor(dst=better, data1=none, data2=stays, op=AluOp.GREATER_EQUAL))
        return better

    def _add(self, offset: _Offset, chosen: Access, source: Access, result: Access) -> None:
        builder = self.slide.builder
        number, given = self._places(chosen, offset), self._places(source, offset)
        target = self._elements(result, offset)
        hit, total = scratch(builder, number, _TRUTH), scratch(builder, target)
        here = Immediate(float(offset.number))
        builder.emit(TensorScalar(dst=hit, data=number, op0=AluOp.EQUAL, operand0=here))
        apply(builder, self.scatter, (target, given), [total])
        choose(builder, target, total, hit)


def choose(builder: KernelBuilder, dst: Access, src: Access, where: Access) -> None:
    """dst = src, bit by bit, where a predicate holds."""
    dst, src = elementwise.as_bits(dst), elementwise.as_bits(src)
    if dst.element_type.storage_bits > 32:
        kept = scratch(builder, dst)
        srcs = (where, src, dst)
        builder.emit(CustomOp(dst=kept, function=CustomFunction.SELECT, srcs=srcs))
        elementwise.copy(builder, dst, kept)
    else:
        builder.emit(CopyPredicated(dst=dst, src=src, predicate=where))


RULES = {"reduce_window": reduce_window, "select_and_scatter": select_and_scatter}
"""Operation -> rule."""

REWRITES = {"reduce_window": padded}
"""Operation -> what it is in terms of others."""
