"""Copies of rows whose elements lie close together in the source, in another order: every second
one, from the last to the first, each one several times.

A DMA engine moves such elements one by one. Rows that are loaded whole, walked over by an engine
and stored whole arrive as fast as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import MAX_FREE_AXES, Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.slide import Slide
from neuronjax.lower.chain.sweep import lanes, tile
from neuronjax.lower.chain.turned import joined
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, dense_strides
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.machine.specs import PARTITIONS, WORD_BYTES
from neuronjax.program.affine import Affine
from neuronjax.program.operand import Access, Dim


@dataclass(frozen=True)
class Steps:
    """A copy of rows: the last dimension of `source` is what is loaded of a row, that of `target`
    what is stored; `walk` are size and stride of the dimensions between, from element `first`."""

    source: View
    target: View
    walk: tuple[tuple[int, int], ...]
    first: int


def steps_of(source: View, target: View, tuning: Tuning) -> list[Steps]:
    """How a copy is done row by row; empty if it is not, or not faster."""
    shape, strides, others = joined(source, target)
    if (
        math.prod(shape) < tuning.worthwhile_elements
        or source.buffer.dtype.storage_bits > 8 * WORD_BYTES
        or strides[-1] == 1
        or others[-1] != 1
    ):
        return []
    source = replace(source, shape=shape, strides=strides)
    target = replace(target, shape=shape, strides=others)
    least = tuning.copied_run
    most = max(least, min(tuning.tile_elements, math.prod(shape) // PARTITIONS))
    return _rows(source, target, most, least, tuning.moved_for_one)


def _rows(source: View, target: View, most: int, least: int, apart: int) -> list[Steps]:
    """The copy in rows of at most so many elements; empty if they would have fewer than `least`, or
    if more than `apart` would be moved for each that is wanted."""
    shape, within, elements = source.shape, len(source.shape), 1
    while within and len(shape) - within < MAX_FREE_AXES and target.strides[within - 1] == elements:
        size = shape[within - 1]
        part = size if elements * size <= most else _part(size, most // elements)
        if size % part:
            whole, axis = size - size % part, within - 1
            main = [_between(view, axis, 0, whole) for view in (source, target)]
            rest = [_between(view, axis, whole, size) for view in (source, target)]
            rows = _rows(main[0], main[1], most, least, apart)
            return rows and [*rows, *_rows(rest[0], rest[1], most, 1, apart)]
        if part < size:
            source, target = (view.split(within - 1, size // part) for view in (source, target))
            elements *= part
            break
        elements *= size
        within -= 1
    steps = _steps(source, target, within, apart)
    return [steps] if elements >= least and steps is not None else []


def _part(size: int, most: int) -> int:
    """A divisor near `most` if there is one, so that nothing remains."""
    even = (part for part in range(most, max(1, most // 2), -1) if size % part == 0)
    return next(even, max(1, most))


def _between(view: View, axis: int, first: int, last: int) -> View:
    starts = [first if dim == axis else 0 for dim in range(len(view.shape))]
    limits = [last if dim == axis else size for dim, size in enumerate(view.shape)]
    return view.sliced(starts, limits, [1] * len(starts))


def _steps(source: View, target: View, within: int, apart: int) -> Steps | None:
    """Rows of the dimensions from `within` on; None if they lie far apart."""
    walk = tuple(zip(source.shape[within:], source.strides[within:], strict=True))
    before = sum(-stride * (size - 1) for size, stride in walk if stride < 0)
    span = 1 + sum(abs(stride) * (size - 1) for size, stride in walk)
    elements = math.prod(source.shape[within:])
    if span > apart * elements:
        return None
    outer = source.shape[:within]
    return Steps(
        replace(
            source,
            shape=(*outer, span),
            strides=(*source.strides[:within], 1),
            offset=source.offset + -before,
        ),
        replace(target, shape=(*outer, elements), strides=(*target.strides[:within], 1)),
        walk,
        before,
    )


def write_steps(builder: KernelBuilder, steps: Steps) -> None:
    """The kernel of such a copy."""
    slide = Slide(builder, [len(steps.source.shape) - 1], [steps.source, steps.target])
    slide.sweep.run(partial(_box, slide, steps), slide.sweep.lanes())


def _box(slide: Slide, steps: Steps, region: Region, position: Position) -> None:
    loaded = slide.load(0, region, position)
    stored = tile(slide.builder, lanes(region), slide.sizes(1), loaded.element_type)
    sizes = [size for size, _ in steps.walk]
    strides = [stride for _, stride in steps.walk]
    elementwise.copy(
        slide.builder,
        _walked(stored, sizes, dense_strides(sizes)),
        replace(_walked(loaded, sizes, strides), offset=Affine(steps.first)),
    )
    slide.store(1, region, position, stored)


def _walked(data: Access, sizes: Sequence[int], strides: Sequence[int]) -> Access:
    dims = tuple(Dim(stride, size) for size, stride in zip(sizes, strides, strict=True))
    return replace(data, dims=dims)
