"""Attention as one kernel: rows of scores and weights stay in SBUF.

For 128 queries at a time, the scores of all keys are computed, the chain of operations on their
rows runs, and the weights are transposed through the array to be multiplied with the values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from neuronjax.hlo.graph import Op
from neuronjax.lower.chain.boxes import is_resident
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.epilogue import Epilogue, Rows
from neuronjax.lower.operations import peel
from neuronjax.lower.product.attention_rows import AttentionWriter, Weights
from neuronjax.lower.product.long_attention import LongAttentionWriter
from neuronjax.lower.product.matmul import Sides, dimensions, multiplied
from neuronjax.lower.product.product import ProductWriter
from neuronjax.lower.product.segments import cut
from neuronjax.lower.product.sweeps import Room, rooms
from neuronjax.lower.product.wide_attention import WideAttentionWriter
from neuronjax.lower.scope import Scope, Write
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.lower.write.kernel_labels import chain_name
from neuronjax.program.operand import Buffer


def attention(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A product of which one operand is made from the rows of another product."""
    rows = epilogue.rows
    assert rows is not None
    side = next(n for n, operand in enumerate(op.operands) if peel(operand)[0] is rows.value)
    first_views = [scope.view(operand) for operand in rows.op.operands]
    value_view = scope.view(op.operands[1 - side])
    shape = op.operands[side].shape
    unseen = View(value_view.buffer, shape, (0,) * len(shape))
    last_views = [unseen, value_view] if side == 0 else [value_view, unseen]
    first, last = dimensions(rows.op, first_views), dimensions(op, last_views)
    _, relation = peel(op.operands[side])
    axes = [None if axis is None else rows.placed[axis] for axis in relation]
    dims = [(last.placed[side][d], axis) for d, axis in enumerate(axes) if axis is not None]
    keys = {axis for dim, axis in dims if dim in last.product.contracted}
    weights = Weights(keys <= set(first.product.right), side == 0, tuple(dims), rows.reference)
    for start, sides in _parts(rows, first, last, weights, keys, scope.tuning):
        _write(scope, op, epilogue, sides, weights, start, [*first_views, value_view])


Start = tuple[tuple[int, int], ...]
"""Dimension of the first product -> index at which a part of it begins."""


def _parts(
    rows: Rows, first: Sides, last: Sides, weights: Weights, keys: set[int], tuning: Tuning
) -> Iterator[tuple[Start, tuple[Sides, Sides]]]:
    """Both products, in one piece or where queries do not see all keys, for any arguments, in
    several: a kernel for each."""
    segments = None
    if len(first.product.axes(sorted(keys))) == 1:
        (key,) = (dim for dim in keys if first.product.sizes[dim] > 1)
        queries = first.product.left if weights.keys_are_right else first.product.right
        segments = cut(rows, key, queries, rows.op.result.shape, tuning)
    if segments is None:
        yield (), (first, last)
        return
    for segment in segments.segments:
        further = segments.further(segment, last, weights.dims)
        yield segments.start(segment), (segments.sides(segment, first), further)


def _write(
    scope: Scope, op: Op, epilogue: Epilogue, sides: tuple[Sides, Sides], weights: Weights,
    start: Start, operands: Sequence[View],
) -> None:  # fmt: skip
    """A kernel of attention over queries, keys and values."""
    rows = epilogue.rows
    assert rows is not None
    first, last = sides
    inner = rows.epilogue
    counts = [len(inner.views), len(inner.buffers)]

    def writers(
        builder: KernelBuilder, seen: list[View], made: list[Buffer]
    ) -> tuple[ProductWriter, ProductWriter]:
        pair = seen[:2]
        others = [seen[2], seen[2]]
        inner_views, outer_views = seen[3 : 3 + counts[0]], seen[3 + counts[0] :]
        inner_buffers = [*(v.buffer for v in inner_views), *made[: counts[1]]]
        outer_buffers = [*(v.buffer for v in outer_views), *made[counts[1] :]]
        scores_writer = product_writer(builder, rows.op, first, pair, inner, inner_buffers)
        scores_writer.emitter.wanted = frozenset({weights.reference})
        two = product_writer(builder, op, last, others, epilogue, outer_buffers)
        return scores_writer, two

    def whole(builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        wide = WideAttentionWriter(builder, *writers(builder, seen, made), weights, start)
        if wide.fits():
            wide.write()
        else:
            AttentionWriter(builder, *writers(builder, seen, made), weights, start).write()

    def part_by_part(room: Room, builder: KernelBuilder, seen: list[View], made: list[Buffer]
                     ) -> None:  # fmt: skip
        LongAttentionWriter(builder, *writers(builder, seen, made), weights, start, room).write()

    plans: list[Sequence[Write]] = []
    contracted = [axis for dim, axis in weights.dims if dim in last.product.contracted]
    keys = math.prod(first.product.sizes[axis] for axis in contracted)
    if is_resident(keys, scope.tuning.score_bytes, scope.tuning):
        plans.append([whole])
    if len(first.product.axes(contracted)) == 1:
        psum = scope.unit.target.core.psum
        sums = psum.banks // 2  # the others are for scores
        several = rooms(scope.tuning.attention_part, sums)
        plans.append([functools.partial(part_by_part, room) for room in several])
    key = ("attention", first, last, weights, start, inner.program, epilogue.program,
           tuple(str(value.dtype) for value in (*rows.op.operands, *op.operands, *op.results)),
           str(rows.op.result.dtype))  # fmt: skip
    operations = (*inner.operations, *epilogue.operations)
    views = [*operands, *inner.views, *epilogue.views]
    buffers = [*inner.buffers, *epilogue.buffers]
    name = f"attention_{chain_name(operations)}"
    scope.kernel(name, operations, key, views, buffers, plans)


def product_writer(
    builder: KernelBuilder,
    op: Op,
    sides: Sides,
    views: Sequence[View],
    epilogue: Epilogue,
    buffers: Sequence[Buffer],
) -> ProductWriter:
    """Returns the writer of a product whose sums an epilogue reads."""
    dtypes = [operand.dtype for operand in op.operands]
    depth = sides.product.count(sides.product.contracted)
    types = multiplied(dtypes, op.result.dtype, depth, builder.core.tensor)
    assert types is not None
    left, right = sides.operands(views, types)
    emitter = TileEmitter(builder, epilogue.program, buffers, builder.tuning.chain_slots)
    return ProductWriter(builder, sides.product, left, right, emitter, op.result.dtype)


EPILOGUES = {"attention": attention}
"""Operation -> rule."""
