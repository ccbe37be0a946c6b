"""`chosen_product`: a product with windows of a tensor that indices choose, read where they lie.

The experts and adapters that a batch asks for go from HBM to the Tensor engine once, as any weights
do: an index is loaded into a register, and transfers add it to their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from neuronjax.hlo.graph import Op
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.index import addresses, gather, gather_table, movement
from neuronjax.lower.index.gather_table import GatherTable
from neuronjax.lower.product.matmul import Sides, Windows, dimensions, write_product
from neuronjax.lower.product.panels import Operand
from neuronjax.lower.product.product import Choose
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, dense_strides
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.operand import RegisterOffset

Make = Callable[[Sides], Windows]
"""The windows of a product that is walked so."""


def chosen_product(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A product, one operand of which is the windows that a gather or dynamic slice would copy."""
    (side,) = op.attributes["chosen_sides"]
    views = [scope.view(operand) for operand in op.operands[:2]]
    if min(views[side].strides, default=0) < 0:
        views[side] = gather.forward(scope, op.operands[side])
    source, relation = views[side], op.attributes["relation"]
    if op.attributes["by"] == "gather":
        windows, seen = _gathered(scope, op, source)
    else:
        windows, seen = _sliced(scope, op, source)
    views[side] = View(
        source.buffer,
        op.attributes["shape"],
        tuple(0 if dim is None else seen.strides[dim] for dim in relation),
        source.offset,
    )
    sides = dimensions(op, views)
    write_product(scope, op, epilogue, views, [sides], windows(sides))


def _sliced(scope: Scope, op: Op, source: View) -> tuple[Make, View]:
    """The windows of a dynamic slice, and the view of the one that begins at 0."""
    sizes, (side,) = op.attributes["slice_sizes"], op.attributes["chosen_sides"]
    starts = op.operands[2:]
    limits = [n - size for n, size in zip(source.shape, sizes, strict=True)]
    dtypes = [start.dtype for start in starts]

    def choose(operands: tuple[Operand, Operand], places: Sequence[View]) -> Choose:
        def at(builder: KernelBuilder, position: Position) -> tuple[Operand, Operand]:
            start = movement.start_offset(scope, builder, places, dtypes, limits, source.strides)
            return _begun(operands, side, start)

        return at

    views = [scope.view(start) for start in starts]
    key = ("slice", tuple(sizes), source.shape, source.strides, tuple(map(str, dtypes)))
    return lambda sides: Windows(views, choose, key), View(source.buffer, sizes, source.strides)


def _gathered(scope: Scope, op: Op, source: View) -> tuple[Make, View]:
    """The windows of a gather: a product of the batch for each index vector."""
    numbers, sizes = op.attributes["dimension_numbers"], op.attributes["slice_sizes"]
    (side,), relation = op.attributes["chosen_sides"], op.attributes["relation"]
    indices = op.operands[2]
    batch_shape, index = gather.vectors(scope, indices, numbers["index_vector_dim"])
    table = gather_table.table_of(
        source, sizes, numbers["start_index_map"], (), batch_shape, indices.dtype
    )
    own, offsets = _result_strides(table, numbers)

    def windows(sides: Sides) -> Windows:
        """`sides` say which dimension of the product counts which index vectors."""
        counts = [
            (sides.placed[side][axis], own[dim])
            for axis, dim in enumerate(relation)
            if dim is not None and own[dim]
        ]

        def choose(operands: tuple[Operand, Operand], views: Sequence[View]) -> Choose:
            def at(builder: KernelBuilder, position: Position) -> tuple[Operand, Operand]:
                number: Affine = ZERO
                for dim, stride in counts:
                    number = number + position[dim] * stride
                where = addresses.Position(number, {})
                return _begun(
                    operands, side, addresses.start(scope, builder, table, views[0], where)
                )

            return at

        return Windows([index], choose, ("gather", table, tuple(counts)))

    return windows, View(source.buffer, (), offsets)


def _result_strides(table: GatherTable, numbers: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides of each dimension of a gather's result: index vectors from one to the next, and
    elements of the window; one of the two is 0."""
    dropped = numbers["collapsed_slice_dims"]
    window = [stride for dim, stride in enumerate(table.strides) if dim not in dropped]
    offsets = list(numbers["offset_dims"])
    vectors = list(dense_strides(table.shape))
    counts, strides = [], []
    for dim in range(len(vectors) + len(window)):
        is_window = dim in offsets
        counts.append(0 if is_window else vectors.pop(0))
        strides.append(window.pop(0) if is_window else 0)
    return tuple(counts), tuple(strides)


def _begun(
    operands: tuple[Operand, Operand], side: int, start: RegisterOffset | Affine | None
) -> tuple[Operand, Operand]:
    """Operands of which one begins at a register; without one there is only one window."""
    if not isinstance(start, RegisterOffset):
        return operands
    left, right = operands
    if side == 0:
        return replace(left, window=start), right
    return left, replace(right, window=start)


EPILOGUES = {"chosen_product": chosen_product}
"""Operation -> rule."""
