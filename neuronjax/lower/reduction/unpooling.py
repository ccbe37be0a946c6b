"""`select_and_scatter`: the gradient of pooling. Each window picks one of its elements.

Windows slide within partitions, so channels that lie innermost are turned outwards before, and back
after: single elements of them would be moved one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.slide import Slide
from neuronjax.lower.control import host
from neuronjax.lower.reduction.reduce import immediate
from neuronjax.lower.reduction.window import Windows, windows_of
from neuronjax.lower.region import apply, fingerprint, is_emittable, scratch
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, dense_strides, whole_view
from neuronjax.lower.write.builder import KernelBuilder, room_of, tile_access
from neuronjax.machine.specs import ACCESS_DIMS
from neuronjax.program.element_types import INTEGERS
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operand import Access, Buffer, Immediate
from neuronjax.program.operators import AluOp, CustomFunction
from neuronjax.program.vector_engine import CopyPredicated, Memset, TensorScalar, TensorTensor

_TRUTH = INTEGERS["uint8"]


def select_and_scatter(scope: Scope, op: Op) -> None:
    """Each window picks an element; what belongs to the window is added where that lies."""
    select, scatter = op.regions
    operand, source, init = op.operands
    windows = windows_of(op)
    sliding = windows.sliding
    area = math.prod(operand.shape[dim] for dim in sliding)
    places = math.prod(source.shape[dim] for dim in sliding)
    width = operand.dtype.itemsize
    small = 2 * area * width + places * (5 * width + 8) <= room_of(
        scope.unit.target.core, scope.tuning
    )
    emittable = is_emittable(select) and is_emittable(scatter) and len(sliding) <= ACCESS_DIMS
    first = immediate(init)
    if not small or not emittable or first is None:
        host.lower(scope, op)
        return
    order = [*(dim for dim in range(len(operand.shape)) if dim not in sliding), *sliding]
    axes = [order.index(dim) for dim in range(len(order))]
    views = [scope.straight(value, axes) for value in (operand, source)]
    target = result = whole_view(scope.result(op.result), op.result.shape)
    if views[0] != scope.view(operand):
        shape = tuple(operand.shape[dim] for dim in order)
        buffer = scope.scratch(shape, views[0].buffer.dtype, "turned")
        target = whole_view(buffer, shape).along(axes)

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        _Unpooling(Slide(builder, sliding, seen), select, scatter, windows, first).run()

    key = ("select_and_scatter", fingerprint(select), fingerprint(scatter), windows, repr(first))
    scope.kernel(op.name, [op], key, [*views, target], [], write)
    if target != result:
        scope.copy(target, result, op)


@dataclass(frozen=True)
class _Offset:
    """An element of every window: its number, and for each dimension the windows that have it.

    `spans` are, by dimension, the first such window, their number and the place of the element.
    """

    number: int
    spans: tuple[tuple[int, int, int], ...]


@dataclass
class _Unpooling:
    """The writing of an unpooling; values of its slide are operand, source and result."""

    slide: Slide
    select: Graph
    scatter: Graph
    windows: Windows
    first: Immediate

    def run(self) -> None:
        self.slide.sweep.run(self._box, self.slide.sweep.lanes())

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
        """The elements at an offset of its windows, in a tile like the operand's."""
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
        chosen = scratch(builder, source, FLOAT32)
        offsets = list(self._offsets())
        all_have = bool(offsets) and self._covers(offsets[0])
        if all_have:
            first, *offsets = offsets
            elementwise.copy(builder, best, self._elements(operand, first))
            builder.emit(Memset(dst=chosen, value=Immediate(float(first.number))))
        else:
            elementwise.fill(builder, elementwise.as_bits(best), Immediate(0))
            builder.emit(Memset(dst=chosen, value=Immediate(-1.0)))
        for offset in offsets:
            with builder.recycling():
                current, number = self._places(best, offset), self._places(chosen, offset)
                element = self._elements(operand, offset)
                better = self._better(current, element, None if all_have else number)
                choose(builder, current, element, better)
                here = Immediate(float(offset.number))
                builder.emit(CopyPredicated(dst=number, src=here, predicate=better))
        return chosen

    def _covers(self, offset: _Offset) -> bool:
        """Whether every window has this element."""
        return all(
            count == windows
            for (_, count, _), windows in zip(offset.spans, self.slide.sizes(1), strict=True)
        )

    def _better(self, current: Access, element: Access, number: Access | None) -> Access:
        """Whether `select` prefers the element, or there is none yet by the `number`."""
        builder = self.slide.builder
        stays, better = (scratch(builder, current, _TRUTH) for _ in range(2))
        apply(builder, self.select, (current, element), [stays])
        less = AluOp.LESS
        if number is None:
            builder.emit(TensorScalar(dst=better, data=stays, op0=less, operand0=Immediate(1.0)))
            return better
        none = scratch(builder, current, _TRUTH)
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


RULES = {"select_and_scatter": select_and_scatter}
"""Operation -> rule."""
