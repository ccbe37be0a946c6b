"""`dot_general`: products on the Tensor engine, with what follows while PSUM is emptied.

Types that the Tensor engine does not have, but whose values a type has that it does have, are cast
while they are loaded. What it cannot multiply exactly is multiplied on GpSimd.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from neuronjax.formats import BFLOAT16, EXACT_INTEGERS, FLOAT32, FORMATS, Format
from neuronjax.hlo.graph import Op
from neuronjax.lower.chain.boxes import Axis, Box
from neuronjax.lower.chain.positions import Position, nest, origin, shifted
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.product.panels import Operand, blocks
from neuronjax.lower.product.product import Choose, ProductWriter
from neuronjax.lower.product.steps import Batch, Product
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.lower.write.kernel_labels import chain_name
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS, TensorEngineSpec
from neuronjax.program.affine import Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operand import Access, Buffer, Immediate
from neuronjax.program.operators import CustomFunction

_LARGEST: Mapping[str, int] = {
    "bool": 1, "int2": 2, "uint2": 3, "int4": 8, "uint4": 15, "int8": 128, "uint8": 255,
}  # fmt: skip
"""Integer type -> greatest magnitude; all have at most 8 bits, which BF16 represents."""


def multiplied(
    dtypes: Sequence[np.dtype], result: np.dtype, depth: int, tensor: TensorEngineSpec
) -> tuple[ElementType, ElementType] | None:
    """The types in which the Tensor engine multiplies operands; None: it cannot, exactly."""
    if not all(dtype.name in _LARGEST or _is_format(dtype) for dtype in dtypes):
        return None
    sizes = [_LARGEST.get(dtype.name, 0) for dtype in dtypes]
    if all(sizes) and (not _is_format(result) and result.itemsize < 4):
        return None
    if all(sizes) and sizes[0] * sizes[1] * depth > EXACT_INTEGERS:
        return None
    left, right = (_native(dtype, tensor) for dtype in dtypes)
    if FLOAT32 in (left, right):
        return FLOAT32, FLOAT32
    if {left.name, right.name} == {"float8_e4m3", "float8_e4m3fn"}:
        return BFLOAT16, BFLOAT16
    return left, right


def _is_format(dtype: np.dtype) -> bool:
    return isinstance(storage_of(dtype).dtype, Format) and dtype.name in FORMATS


def _native(dtype: np.dtype, tensor: TensorEngineSpec) -> ElementType:
    """The type itself, or BF16, which has all values of types of at most 8 bits."""
    stored = storage_of(dtype).dtype
    return stored if stored.name in tensor.rates else BFLOAT16


@dataclass(frozen=True)
class Sides:
    """A product, and the strides of its operands along its dimensions."""

    product: Product
    left: tuple[int, ...]
    right: tuple[int, ...]
    #: Dimension of memory of the left operand that each dimension runs along; None: its own.
    memory: tuple[int, ...] | None = None
    #: The dimension of the product for each dimension of the operands of a `dot_general`.
    placed: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def operands(
        self, views: Sequence[View], dtypes: tuple[ElementType, ElementType]
    ) -> tuple[Operand, Operand]:
        """Both operands over views."""
        own = tuple(range(len(self.product.sizes)))
        return (
            Operand(views[0], self.left, self.memory or own, dtypes[0]),
            Operand(views[1], self.right, own, dtypes[1]),
        )


@dataclass(frozen=True)
class Windows:
    """Parts of an operand that indices choose: the views that hold the indices, and a function of
    the operands and these views that makes a `Choose` of them; `key` says what it depends on."""

    views: Sequence[View]
    choose: Callable[[tuple[Operand, Operand], Sequence[View]], Choose]
    key: tuple[Any, ...]


def dot_general(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A product with its epilogue as one kernel."""
    views = [scope.view(operand) for operand in op.operands]
    write_product(scope, op, epilogue, views, [dimensions(op, views)])


def write_product(
    scope: Scope,
    op: Op,
    epilogue: Epilogue,
    views: Sequence[View],
    ways: Sequence[Sides],
    windows: Windows | None = None,
) -> None:
    """The kernel of a product over views of its operands, which are walked in one of some ways."""
    dtypes = tuple(operand.dtype for operand in op.operands[:2])
    product = ways[0].product
    depth = product.count(product.contracted)
    types = multiplied(dtypes, op.result.dtype, depth, scope.unit.target.core.tensor)
    chosen = () if windows is None else windows.views

    def write(
        share: float, sides: Sides, builder: KernelBuilder, seen: list[View], made: list[Buffer]
    ) -> None:
        indices, after = seen[2 : 2 + len(chosen)], seen[2 + len(chosen) :]
        buffers = [*(view.buffer for view in after), *made]
        emitter = TileEmitter(builder, epilogue.program, buffers, builder.tuning.chain_slots)
        if types is None:
            stored = (storage_of(dtypes[0]).dtype, storage_of(dtypes[1]).dtype)
            left, right = sides.operands(seen, stored)
            _OnGpSimd(builder, sides.product, left, right, emitter, op.result.dtype).write()
            return
        left, right = sides.operands(seen, types)
        choose = None if windows is None else windows.choose((left, right), indices)
        ProductWriter(
            builder, sides.product, left, right, emitter, op.result.dtype, share, choose
        ).write()

    # Tiles that loops carry from one iteration to the next may need more than panels leave.
    shares = [0.5**halvings for halvings in range(4)]
    plans = [[functools.partial(write, share, sides) for sides in ways] for share in shares]
    key = (op.name, *ways, epilogue.program, tuple(map(str, dtypes)), str(op.result.dtype),
           () if windows is None else windows.key)  # fmt: skip
    scope.kernel(
        chain_name(epilogue.operations), epilogue.operations, key,
        [*views, *chosen, *epilogue.views], epilogue.buffers, plans,
    )  # fmt: skip


def dimensions(op: Op, views: Sequence[View]) -> Sides:
    """The product: batch, left, right and contracted dimensions, in this order."""
    numbers = op.attributes["dot_dimension_numbers"]
    lhs, rhs = (view.shape for view in views)
    lhs_batch, rhs_batch = numbers["lhs_batching_dimensions"], numbers["rhs_batching_dimensions"]
    lhs_k, rhs_k = numbers["lhs_contracting_dimensions"], numbers["rhs_contracting_dimensions"]
    m = [axis for axis in range(len(lhs)) if axis not in (*lhs_batch, *lhs_k)]
    n = [axis for axis in range(len(rhs)) if axis not in (*rhs_batch, *rhs_k)]
    order = sorted(range(len(lhs_k)), key=lambda i: -abs(_least(views, lhs_k[i], rhs_k[i])))
    lhs_k, rhs_k = [lhs_k[i] for i in order], [rhs_k[i] for i in order]
    first = len(lhs_batch)
    second = first + len(m)
    third = second + len(n)
    batch = (lhs[axis] for axis in lhs_batch)
    sizes = (*(1 for _ in lhs_batch), *(lhs[a] for a in m), *(rhs[a] for a in n),
             *(lhs[a] for a in lhs_k))  # fmt: skip
    product = Product(
        sizes,
        tuple(Batch(size, ((dim, 1),)) for dim, size in enumerate(batch)),
        tuple(range(first, second)),
        tuple(range(second, third)),
        tuple(range(third, len(sizes))),
    )
    of_left = {
        a: d for d, a in (*enumerate(lhs_batch), *enumerate(m, first), *enumerate(lhs_k, third))
    }
    of_right = {
        a: d for d, a in (*enumerate(rhs_batch), *enumerate(n, second), *enumerate(rhs_k, third))
    }
    left, right = [0] * len(sizes), [0] * len(sizes)
    for axis, dim in of_left.items():
        left[dim] = views[0].strides[axis]
    for axis, dim in of_right.items():
        right[dim] = views[1].strides[axis]
    placed = (
        tuple(of_left[axis] for axis in range(len(lhs))),
        tuple(of_right[axis] for axis in range(len(rhs))),
    )
    return Sides(product, tuple(left), tuple(right), placed=placed)


def _least(views: Sequence[View], left: int, right: int) -> int:
    """How far apart neighbours along a contracted dimension lie, where they are closest."""
    return min(abs(views[0].strides[left]), abs(views[1].strides[right]))


@dataclass
class _OnGpSimd:
    """Element by element of the contraction: exact in integers of every width."""

    builder: KernelBuilder
    product: Product
    left: Operand
    right: Operand
    emitter: TileEmitter
    result: np.dtype

    def write(self) -> None:
        """The kernel."""
        start = origin(len(self.product.sizes))
        nest(self.builder, self.product.batches, start, self._of_batch)

    def _of_batch(self, position: Position) -> None:
        product = self.product
        for m in blocks(product.axes(product.left), PARTITIONS):
            for n in blocks(product.axes(product.right), MOVING_COLUMNS):
                start = shifted(position, (*m.base, *n.base))
                tile = partial(self._tile, m.tile, n.tile)
                nest(self.builder, (*m.loops, *n.loops), start, tile)

    def _tile(self, m: tuple[Axis, ...], n: tuple[Axis, ...], position: dict[int, Affine]) -> None:
        storage = storage_of(self.result).dtype
        rows, columns = (int(np.prod([axis.size for axis in axes])) for axes in (m, n))
        total, part = (self.builder.tile((rows, columns), storage, name="acc") for _ in range(2))
        dst, product = tile_access(total, [columns], [1]), tile_access(part, [columns], [1])
        convert = CustomFunction.CONVERT
        self.builder.emit(CustomOp(dst=dst, function=convert, srcs=(Immediate(0, storage),)))

        def step(at: dict[int, Affine]) -> None:
            left = self.builder.tile((rows, 1), self.left.dtype, name="left")
            right = self.builder.tile((rows, columns), self.right.dtype, name="right")
            column, row = tile_access(left, [1], [1]), tile_access(right, [columns], [1])
            self.builder.emit(DmaCopy(dst=column, src=self.left.access(m, at)))
            self.builder.emit(DmaCopy(dst=row, src=self.right.access([*m, *n], at)))
            wide_column, other = (self._wide(operand, storage) for operand in (column, row))
            repeated = tile_access(wide_column.buffer, [columns], [0])
            multiply, add = CustomFunction.MULTIPLY, CustomFunction.ADD
            self.builder.emit(CustomOp(dst=product, function=multiply, srcs=(repeated, other)))
            self.builder.emit(CustomOp(dst=dst, function=add, srcs=(dst, product)))

        nest(self.builder, self.product.axes(self.product.contracted), position, step)
        domain = range(len(self.emitter.program.domain))
        box = Box(m, n, {dim: position[dim] for dim in domain})
        self.emitter.box(box, {Reference(0, is_input=True): dst})

    def _wide(self, access: Access, storage: ElementType) -> Access:
        """The access as one of the type of the sum."""
        if access.element_type == storage:
            return access
        columns = access.free_elements
        tile = self.builder.tile((access.partitions, columns), storage, name="wide")
        dst = tile_access(tile, [columns], [1])
        self.builder.emit(CustomOp(dst=dst, function=CustomFunction.CONVERT, srcs=(access,)))
        return dst


EPILOGUES = {"dot_general": dot_general}
"""Operation -> rule."""
