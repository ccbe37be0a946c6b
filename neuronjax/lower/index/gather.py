"""`gather`: windows that index vectors name, by transfers that take row numbers from SBUF.

A single window, or a few great ones, are plain transfers from an address in a register.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.index import addresses, gather_table, small_table
from neuronjax.lower.index.gather_table import Batch, GatherTable, Part, Starts
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, dense_strides, walk, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.affine import Affine
from neuronjax.program.dma import DmaCopy, DmaGather
from neuronjax.program.operand import Access, Buffer, Dim


def gather(scope: Scope, op: Op) -> None:
    """Windows in the order of index vectors; the result is that, its dimensions in another order.

    The dimensions are those of the index vectors, then those of the window.
    """
    operand, indices = op.operands
    numbers = op.attributes["dimension_numbers"]
    sizes = op.attributes["slice_sizes"]
    view = forward(scope, operand)
    if _is_read_in_crumbs(view, sizes, math.prod(op.result.shape), scope.tuning.moved_for_one):
        view = whole_view(scope.dense(operand), operand.shape)
    batch_shape, index = vectors(scope, indices, numbers["index_vector_dim"])
    table = gather_table.table_of(
        view, sizes, numbers["start_index_map"], shared_dimensions(numbers, "operand"),
        batch_shape, indices.dtype,
    )  # fmt: skip
    first = _windows_first(scope, op)
    stored = storage_of(op.result.dtype).dtype
    if small_table.is_small(table, view, stored, scope.tuning, windows_first=first is not None):
        _looked_up(scope, op, table, view, index)
        return
    target = _target(scope, op.result, numbers, batch_shape, sizes)

    def write(builder: KernelBuilder, views: list[View], buffers: list[Buffer]) -> None:
        if addresses.are_better(table, buffers[0].dtype, scope.tuning):
            _by_address(scope, builder, table, views, buffers[0])
        else:
            _by_row(builder, table, views, buffers[0])

    scope.kernel("gather", [op], ("gather", table), [view, index], [target], write)


def _windows_first(scope: Scope, op: Op) -> tuple[int, ...] | None:
    """The dimensions of windows, then those of index vectors, if all readers see the result so."""
    offsets = tuple(op.attributes["dimension_numbers"]["offset_dims"])
    order = (*offsets, *(d for d in range(len(op.result.shape)) if d not in offsets))
    elsewhere = op.result in scope.preferred or op.result in scope.frames
    return order if scope.orders.get(op.result) == order and not elsewhere else None


def _looked_up(scope: Scope, op: Op, table: GatherTable, view: View, index: View) -> None:
    """Looks windows up in a small table, in the order in which the result is read."""
    order = _windows_first(scope, op)
    if order is None:
        numbers, sizes = op.attributes["dimension_numbers"], op.attributes["slice_sizes"]
        target = _target(scope, op.result, numbers, table.shape, sizes)
    else:
        target = scope.ordered(op.result)
    windows_first = order is not None

    def write(builder: KernelBuilder, views: list[View], buffers: list[Buffer]) -> None:
        source, where = views
        small_table.Lookup(builder, table, source, where, buffers[0], windows_first).write()

    key = ("look up", table, windows_first)
    scope.kernel("gather", [op], key, [view, index], [target], write)


def _is_read_in_crumbs(view: View, sizes: Sequence[int], count: int, most: int) -> bool:
    """Whether no two of the `count` elements that windows fetch lie side by side, though they do
    where the table is copied in its own order, with at most `most` elements for each."""
    neighbours = [d for d, stride in enumerate(view.strides) if stride == 1 and view.shape[d] > 1]
    is_transposed = bool(neighbours) and all(sizes[d] == 1 for d in neighbours)
    return is_transposed and sizes[-1] > 1 and math.prod(view.shape) < most * count


def forward(scope: Scope, value: Value) -> View:
    """A view without negative strides."""
    view = scope.view(value)
    if min(view.strides, default=0) >= 0:
        return view
    return whole_view(scope.dense(value), value.shape)


def vectors(scope: Scope, indices: Value, dimension: int) -> tuple[tuple[int, ...], View]:
    """The shape of the index vectors, and all of them as [vectors, components]."""
    view = scope.view(indices)
    shape = list(indices.shape)
    if dimension == len(shape):
        view = View(view.buffer, (*view.shape, 1), (*view.strides, 0), view.offset)
        shape.append(1)
    count = shape.pop(dimension)
    order = [axis for axis in range(len(view.shape)) if axis != dimension]
    return tuple(shape), flat(scope, view.along([*order, dimension]), (math.prod(shape), count))


def flat(scope: Scope, view: View, shape: tuple[int, ...]) -> View:
    """A view in another shape; copied if no strides express it."""
    seen = view.reshaped(shape)
    if seen is None:
        buffer = scope.scratch(shape, view.buffer.dtype)
        scope.copy(view, whole_view(buffer, view.shape))
        seen = whole_view(buffer, shape)
    return seen


def shared_dimensions(numbers: Mapping[str, Any], side: str) -> list[tuple[int, int]]:
    """Pairs of dimensions of the operand and of the index vectors that run together."""
    own, other = {
        "operand": ("operand_batching_dims", "start_indices_batching_dims"),
        "input": ("input_batching_dims", "scatter_indices_batching_dims"),
    }[side]
    vector = numbers["index_vector_dim"]
    return [(d, b - (b > vector)) for d, b in zip(numbers[own], numbers[other], strict=True)]


def _target(
    scope: Scope,
    result: Value,
    numbers: Mapping[str, Any],
    batch_shape: Sequence[int],
    sizes: Sequence[int],
) -> Buffer:
    """A buffer of [index vectors, window]; the result is seen in it."""
    dropped = {*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]}
    window = [size for d, size in enumerate(sizes) if d not in dropped]
    offsets = list(numbers["offset_dims"])
    others = [d for d in range(len(result.shape)) if d not in offsets]
    order = [*others, *offsets]
    lying = (*batch_shape, *window)
    if [d for d in order if result.shape[d] != 1] == [
        d for d in range(len(order)) if result.shape[d] != 1
    ]:
        return scope.result(result)
    buffer = scope.scratch(lying, storage_of(result.dtype).dtype, "v")
    back = [order.index(d) for d in range(len(order))]
    scope.views[result] = whole_view(buffer, lying).along(back)
    return buffer


def _by_row(
    builder: KernelBuilder, table: GatherTable, views: Sequence[View], target: Buffer
) -> None:
    source, index = views
    starts = Starts(builder, table, index)
    most = gather_table.most_elements(builder, target.dtype, tiles=2)
    for batch in gather_table.batches(table.vectors, builder.tuning.index_columns):
        with builder.loop(batch.trips) as trip:
            base = trip * (batch.columns * batch.partitions) + batch.base
            row_starts = starts.emit(batch, base)
            with builder.loop(batch.columns) as column:
                first = column * batch.partitions + base
                for part in gather_table.parts(table.window, most):
                    with gather_table.walked(builder, part) as at:
                        tile = _tile(builder, target, batch, part, first, at)
                        where = starts.column(row_starts, column)
                        seen = gather_table.rows_access(source, table, part, at)
                        builder.emit(DmaGather(dst=tile, table=seen, index=where))
                        dst = windows_access(target, table, batch, part, first, at)
                        builder.emit(DmaCopy(dst=dst, src=tile))


def _tile(
    builder: KernelBuilder,
    target: Buffer,
    batch: Batch,
    part: Part,
    first: Affine,
    at: dict[int, Affine],
) -> Access:
    slot = gather_table.slot_of(first, *at.values())
    buffer = builder.tile(
        (batch.partitions, part.elements), target.dtype, slots=2 if slot.terms else 1, name="w"
    )
    dims = (Dim(1, part.elements),)
    return Access(buffer=buffer, partitions=batch.partitions, dims=dims, slot=slot)


def windows_access(
    buffer: Buffer,
    table: GatherTable,
    batch: Batch,
    part: Part,
    first: Affine,
    at: dict[int, Affine],
) -> Access:
    """Parts of windows that lie in order in a buffer, for the vectors from `first` on."""
    strides = dense_strides(table.window)
    return walk(
        buffer,
        first * table.elements + gather_table.offset_of(at, strides),
        (batch.partitions, *part.sizes),
        (table.elements, *strides),
    )


def _by_address(
    scope: Scope, builder: KernelBuilder, table: GatherTable, views: Sequence[View], target: Buffer
) -> None:
    source, index = views
    strides = dense_strides(table.window)
    with addresses.positions(builder, table) as at:
        start = addresses.start(scope, builder, table, index, at)
        part = View(source.buffer, table.window, table.strides, source.offset)
        dst = walk(target, at.number * table.elements, table.window, strides)
        builder.copy(dst, part.access(start))


RULES = {"gather": gather}
"""Operation -> rule."""
