"""Running sums along a dimension whose neighbours lie apart: step by step, for all columns at once.

Columns lie side by side in memory, and so they do in a tile: a step combines the column before with
the next one. A scan would need each row within a partition, whose elements arrive one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Region, boxes
from neuronjax.lower.chain.positions import Position, nest
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes, turn
from neuronjax.lower.rates import Rates
from neuronjax.lower.reduction.reduce import initial
from neuronjax.lower.region import scratch
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Immediate
from neuronjax.program.operators import AluOp
from neuronjax.program.vector_engine import TensorTensor


def width_of(source: View, target: View, axis: int, tuning: Tuning, rates: Rates) -> int | None:
    """Columns that a partition takes; None: rows are scanned, whose elements arrive and leave one
    by one."""
    shape = source.shape
    columns, least = math.prod(shape[axis + 1 :]), tuning.transfer_neighbours
    if columns < least or not (_is_flat(source, axis) and _is_flat(target, axis)):
        return None
    outer, steps = math.prod(shape[:axis]), shape[axis]

    def time_ns(width: int) -> float:
        return -(-outer * (columns // width) // PARTITIONS) * steps * rates.step_ns(width)

    most = min(columns, tuning.tile_elements)
    fitting = [width for width in range(least, most + 1) if columns % width == 0]
    best = min(fitting, key=time_ns, default=0)
    apart_ns = 2 * rates.run_ns(bytes_of(source.buffer.dtype)) * math.prod(shape)
    return best if best and time_ns(best) < apart_ns else None


def _is_flat(view: View, axis: int) -> bool:
    """Whether all columns lie side by side, in order."""
    later = range(axis + 1, len(view.shape))
    dense = [math.prod(view.shape[dim + 1 :]) for dim in later]
    rows = zip(later, dense, strict=True)
    return all(view.strides[dim] == step for dim, step in rows if view.shape[dim] > 1)


def cut(view: View, axis: int, width: int) -> View:
    """A view as [outer dimensions, parts of columns, steps, columns]."""
    parts = math.prod(view.shape[axis + 1 :]) // width
    return View(
        view.buffer,
        (*view.shape[:axis], parts, view.shape[axis], width),
        (*view.strides[:axis], width, view.strides[axis], 1),
        view.offset,
    )


@dataclass
class Stepwise:
    """Value 0 of the sweep becomes value 1; steps and columns are its last two dimensions."""

    builder: KernelBuilder
    views: Sequence[View]
    operator: AluOp
    first: View | Immediate

    @cached_property
    def sweep(self) -> Sweep:
        """Over what lies on partitions, steps and columns."""
        shape = self.views[0].shape
        dims = tuple(range(len(shape)))
        swept = [Swept(view, dims) for view in self.views]
        return Sweep(self.builder, shape, frozenset({len(shape) - 2}), swept)

    def run(self) -> None:
        """Writes the whole kernel."""
        sizes = self.sweep.program.domain
        rows = [Axis(dim, size) for dim, size in enumerate(sizes[:-2])]
        self.sweep.run(self._rows, boxes(rows, 1, 0, ()))

    def _rows(self, region: Region, position: Position) -> None:
        *_, steps, width = self.sweep.program.domain
        axis = len(self.sweep.program.domain) - 2
        before = initial(self.builder, self.first, lanes(region), width, FLOAT32)
        tuning = self.builder.tuning
        at_once = max(1, min(2 * tuning.tile_elements // width, tuning.written_steps))
        main, rest = divmod(steps, at_once)
        body = partial(self._steps, region, at_once, before)
        if main:
            nest(self.builder, [Axis(axis, main, at_once)], position, body)
        if rest:
            tail = {**position, axis: position[axis] + main * at_once}
            self._steps(region, rest, before, tail)

    def _steps(self, region: Region, count: int, before: Access, position: Position) -> None:
        *_, width = self.sweep.program.domain
        dim = len(self.sweep.program.domain) - 2
        free = (Axis(dim, count), Axis(dim + 1, width))
        data = self.sweep.load(0, region, free, position)
        made = self.sweep.tile(region, (count, width), FLOAT32, turn(position))
        last = before
        for step in range(count):
            new, dst = _column(data, step, width), _column(made, step, width)
            self.builder.emit(TensorTensor(dst=dst, data1=last, data2=new, op=self.operator))
            last = dst
        elementwise.copy(self.builder, before, last)
        dtype = self.views[1].buffer.dtype
        if dtype != FLOAT32:
            kept = scratch(self.builder, made, dtype)
            elementwise.fill(self.builder, kept, made)
            made = kept
        self.sweep.store(1, region, free, position, made)


def _column(access: Access, step: int, width: int) -> Access:
    return tile_access(
        access.buffer, (width,), (1,), offset=step * width, partitions=access.partitions,
        slot=access.slot,
    )  # fmt: skip
