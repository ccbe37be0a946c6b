"""`dot_general`: products on the Tensor engine, with what follows while PSUM is emptied.

The contracted dimensions lie on partitions: the left operand is stationary, the right one moves. An
operand whose contracted dimension is contiguous in memory is loaded row by row and transposed
through the array. Types that the Tensor engine does not have are multiplied on GpSimd.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Op
from neuronjax.lower.builder import PARTITIONS, KernelBuilder, tile_access
from neuronjax.lower.scope import Epilogue, Scope, chain_name
from neuronjax.lower.storage import storage_of
from neuronjax.lower.tiles import Axis, Box, Reference, TileEmitter
from neuronjax.lower.view import View, walk
from neuronjax.program.affine import ZERO, Affine, First, Last
from neuronjax.program.dma import DmaCopy
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operand import Access, Buffer, Immediate, Memory
from neuronjax.program.operators import CustomFunction
from neuronjax.program.tensor_engine import Matmul, TensorTranspose
from neuronjax.program.vector_engine import TensorCopy

MOVING = 512
"""Most free elements of the moving operand: one bank of PSUM."""
PE_TYPES = frozenset({"float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2",
                      "float8_e4m3fn"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """Part of some dimensions: loops around the axes of a tile, from `base` on."""

    loops: tuple[Axis, ...]
    tile: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        return math.prod(axis.size for axis in self.tile)


def blocks(axes: Sequence[Axis], most: int) -> Iterator[Block]:
    """Axes cut into tiles of at most `most` elements, remainders as blocks of their own."""
    rest = [axis for axis in axes if axis.size > 1]
    tile: list[Axis] = []
    size = 1
    while rest:
        axis = rest[-1]
        if size * axis.size <= most:
            tile.insert(0, rest.pop())
            size *= axis.size
            continue
        part = most // size
        if part > 1:
            left = axis.size % part
            rest[-1] = Axis(axis.dim, axis.size // part, axis.step * part)
            yield Block(tuple(rest), (Axis(axis.dim, part, axis.step), *tile))
            if left:
                start = (axis.dim, (axis.size - left) * axis.step)
                tail = [*rest[:-1], Axis(axis.dim, left, axis.step), *tile]
                for each in blocks(tail, most):
                    yield Block(each.loops, each.tile, (start, *each.base))
            return
        break
    yield Block(tuple(rest), tuple(tile))


@dataclass(frozen=True)
class Operand:
    """A side of a product: strides along the dimensions of the result, then the contracted ones."""

    view: View
    strides: tuple[int, ...]

    def access(self, axes: Sequence[Axis], position: dict[int, Affine], buffer: Buffer) -> Access:
        """The elements of `axes`, from `position` on."""
        start = Affine(self.view.offset)
        for dim, at in position.items():
            start = start + at * self.strides[dim]
        return walk(
            buffer,
            start,
            [axis.size for axis in axes],
            [self.strides[axis.dim] * axis.step for axis in axes],
        )


@dataclass(frozen=True)
class Product:
    """A `dot_general` over dimensions: of the result (batch, left, right), then contracted."""

    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    contracted: tuple[int, ...]


def dot_general(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A product with its epilogue as one kernel."""
    product, lhs_dims, rhs_dims = _dimensions(op)
    views = [scope.view(operand) for operand in op.operands]
    lhs_strides = _placed(views[0], lhs_dims, len(product.sizes))
    rhs_strides = _placed(views[1], rhs_dims, len(product.sizes))
    count = len(epilogue.views)
    dtypes = [operand.dtype for operand in op.operands]

    def write(builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        lhs, rhs = Operand(seen[0], lhs_strides), Operand(seen[1], rhs_strides)
        buffers = [*(view.buffer for view in seen[2:]), *made]
        emitter = TileEmitter(builder, epilogue.program, buffers)
        writer = _Writer(builder, product, lhs, rhs, emitter, op.result.dtype, tuple(dtypes))
        writer.write()

    scope.kernel(
        chain_name(epilogue.operations), epilogue.operations,
        ("dot_general", product, lhs_strides, rhs_strides, epilogue.program, count,
         tuple(map(str, dtypes))),
        [*views, *epilogue.views], epilogue.buffers, write,
    )  # fmt: skip


def _dimensions(op: Op) -> tuple[Product, list[int], list[int]]:
    """The product, and which of its dimensions each dimension of an operand is."""
    numbers = op.attributes["dot_dimension_numbers"]
    lhs, rhs = (operand.shape for operand in op.operands)
    lhs_batch, rhs_batch = numbers["lhs_batching_dimensions"], numbers["rhs_batching_dimensions"]
    lhs_k, rhs_k = numbers["lhs_contracting_dimensions"], numbers["rhs_contracting_dimensions"]
    m = [axis for axis in range(len(lhs)) if axis not in (*lhs_batch, *lhs_k)]
    n = [axis for axis in range(len(rhs)) if axis not in (*rhs_batch, *rhs_k)]
    sizes = [*(lhs[a] for a in lhs_batch), *(lhs[a] for a in m), *(rhs[a] for a in n)]
    ends = len(lhs_batch), len(lhs_batch) + len(m), len(sizes)
    sizes += [lhs[axis] for axis in lhs_k]
    batch, left, right, contracted = 0, ends[0], ends[1], ends[2]
    of_lhs = {a: first + i for first, axes in ((batch, lhs_batch), (left, m), (contracted, lhs_k))
              for i, a in enumerate(axes)}  # fmt: skip
    of_rhs = {a: first + i for first, axes in ((batch, rhs_batch), (right, n), (contracted, rhs_k))
              for i, a in enumerate(axes)}  # fmt: skip
    product = Product(
        tuple(sizes),
        tuple(range(ends[0])),
        tuple(range(ends[0], ends[1])),
        tuple(range(ends[1], ends[2])),
        tuple(range(ends[2], len(sizes))),
    )
    return product, [of_lhs[a] for a in range(len(lhs))], [of_rhs[a] for a in range(len(rhs))]


def _placed(view: View, dims: Sequence[int], count: int) -> tuple[int, ...]:
    strides = [0] * count
    for axis, dim in enumerate(dims):
        strides[dim] = view.strides[axis]
    return tuple(strides)


@dataclass
class _Writer:
    builder: KernelBuilder
    product: Product
    lhs: Operand
    rhs: Operand
    emitter: TileEmitter
    result: np.dtype
    dtypes: tuple[np.dtype, ...]

    def write(self) -> None:
        product = self.product
        batch = [axis for axis in self._axes(product.batch) if axis.size > 1]
        position = dict.fromkeys(range(len(product.sizes)), ZERO)
        self._loops(batch, position, self._of_one_batch)

    def _axes(self, dims: Sequence[int]) -> list[Axis]:
        return [Axis(dim, self.product.sizes[dim]) for dim in dims]

    def _loops(self, loops: Sequence[Axis], position: dict[int, Affine], body: object) -> None:
        if not loops:
            body(position)  # type: ignore[operator]
            return
        axis, *inner = loops
        with self.builder.loop(axis.size) as variable:
            at = {**position, axis.dim: position[axis.dim] + variable * axis.step}
            self._loops(inner, at, body)

    def _of_one_batch(self, position: dict[int, Affine]) -> None:
        on_pe = all(dtype.name in PE_TYPES for dtype in self.dtypes)
        for m in blocks(self._axes(self.product.left), PARTITIONS):
            for n in blocks(self._axes(self.product.right), MOVING):
                start = _moved(_moved(position, m.base), n.base)
                body = self._tile if on_pe else self._tile_on_gpsimd
                self._loops(
                    (*m.loops, *n.loops),
                    start,
                    lambda at, m=m, n=n, body=body: body(m, n, at),
                )

    def _tile(self, m: Block, n: Block, position: dict[int, Affine]) -> None:
        total = self.builder.tile((m.size, n.size), FLOAT32, Memory.PSUM, name="acc")
        dst = tile_access(total, [n.size], [1])
        parts = list(blocks(self._axes(self.product.contracted), PARTITIONS))
        for index, k in enumerate(parts):
            start = _moved(position, k.base)
            first, last = index == 0, index == len(parts) - 1
            self._contract(m, n, k, start, dst, (first, last))
        given = self._evicted(m, n, dst)
        box = Box(m.tile, n.tile, {d: position[d] for d in range(len(self.emitter.program.domain))})
        self.emitter.box(box, {Reference(0, is_input=True): given})

    def _contract(
        self,
        m: Block,
        n: Block,
        k: Block,
        position: dict[int, Affine],
        dst: Access,
        ends: tuple[bool, bool],
    ) -> None:
        def step(at: dict[int, Affine]) -> None:
            names = tuple(
                name
                for axis in self.product.contracted
                for name in at[axis].variables
                if name not in position[axis].variables
            )
            first, last = ends
            self.builder.emit(
                Matmul(
                    dst=dst,
                    stationary=self._loaded(self.lhs, k.tile, m.tile, at, self.dtypes[0]),
                    moving=self._loaded(self.rhs, k.tile, n.tile, at, self.dtypes[1]),
                    start=(First(names) if names else True) if first else False,
                    stop=(Last(names) if names else True) if last else False,
                )
            )

        self._loops(k.loops, position, step)

    def _loaded(
        self,
        operand: Operand,
        k: Sequence[Axis],
        free: Sequence[Axis],
        at: dict[int, Affine],
        dtype: np.dtype,
    ) -> Access:
        """A tile with the contracted axes on partitions."""
        rows, columns = (math.prod(axis.size for axis in axes) for axes in (k, free))
        storage = storage_of(dtype).dtype
        tile = self.builder.tile((rows, columns), storage, name="op")
        dst = tile_access(tile, [columns], [1])
        if not self._is_across(operand, k, free, columns):
            src = operand.access([*k, *free], at, operand.view.buffer)
            self.builder.emit(DmaCopy(dst=dst, src=src))
            return dst
        whole = self.builder.tile((columns, rows), storage, name="row")
        src = operand.access([*free, *k], at, operand.view.buffer)
        across = tile_access(whole, [rows], [1])
        self.builder.emit(DmaCopy(dst=across, src=src))
        turned = self.builder.tile((rows, columns), storage, Memory.PSUM, name="turn")
        seen = tile_access(turned, [columns], [1])
        self.builder.emit(TensorTranspose(dst=seen, data=across))
        self.builder.emit(TensorCopy(dst=dst, src=seen))
        return dst

    def _is_across(
        self, operand: Operand, k: Sequence[Axis], free: Sequence[Axis], columns: int
    ) -> bool:
        """Whether memory runs along the contracted axes, and a transpose through PE helps."""
        if not k or not free or columns > PARTITIONS:
            return False
        along, across = k[-1], free[-1]
        return (
            abs(operand.strides[along.dim] * along.step) == 1
            and abs(operand.strides[across.dim] * across.step) != 1
            and storage_of(self.dtypes[0]).dtype.storage_bits >= 16
        )

    def _evicted(self, m: Block, n: Block, total: Access) -> Access:
        """The sum in SBUF, in the type of the result."""
        tile = self.builder.tile((m.size, n.size), storage_of(self.result).dtype, name="out")
        dst = tile_access(tile, [n.size], [1])
        self.builder.emit(TensorCopy(dst=dst, src=total))
        return dst

    def _tile_on_gpsimd(self, m: Block, n: Block, position: dict[int, Affine]) -> None:
        """Element by element of the contraction: exact in integers of every width."""
        storage = storage_of(self.result).dtype
        total, part = (self.builder.tile((m.size, n.size), storage, name="acc") for _ in range(2))
        dst, product = tile_access(total, [n.size], [1]), tile_access(part, [n.size], [1])
        clear = CustomOp(dst=dst, function=CustomFunction.CONVERT, srcs=(Immediate(0),))
        self.builder.emit(clear)

        def step(at: dict[int, Affine]) -> None:
            left = self.builder.tile((m.size, 1), storage_of(self.dtypes[0]).dtype, name="left")
            right = self.builder.tile(
                (m.size, n.size), storage_of(self.dtypes[1]).dtype, name="right"
            )
            column, rows = tile_access(left, [1], [1]), tile_access(right, [n.size], [1])
            self.builder.emit(
                DmaCopy(dst=column, src=self.lhs.access(m.tile, at, self.lhs.view.buffer))
            )
            repeated = self.rhs.access([*m.tile, *n.tile], at, self.rhs.view.buffer)
            self.builder.emit(DmaCopy(dst=rows, src=repeated))
            wide = [self._wide(each, storage) for each in (column, rows)]
            multiply, add = CustomFunction.MULTIPLY, CustomFunction.ADD
            self.builder.emit(CustomOp(dst=product, function=multiply, srcs=tuple(wide)))
            self.builder.emit(CustomOp(dst=dst, function=add, srcs=(dst, product)))

        axes = [axis for axis in self._axes(self.product.contracted) if axis.size > 1]
        self._loops(axes, position, step)
        box = Box(m.tile, n.tile, {d: position[d] for d in range(len(self.emitter.program.domain))})
        self.emitter.box(box, {Reference(0, is_input=True): dst})

    def _wide(self, access: Access, storage: object) -> Access:
        """In the type of the sum."""
        if access.element_type == storage:
            return access
        tile = self.builder.tile(
            (access.partitions, access.free_elements), storage_of(self.result).dtype, name="wide"
        )
        dst = tile_access(tile, [access.free_elements], [1])
        self.builder.emit(CustomOp(dst=dst, function=CustomFunction.CONVERT, srcs=(access,)))
        return dst


def _moved(position: dict[int, Affine], base: Sequence[tuple[int, int]]) -> dict[int, Affine]:
    moved = dict(position)
    for dim, start in base:
        moved[dim] = moved[dim] + start
    return moved


EPILOGUES = {"dot_general": dot_general}
"""Operation -> rule."""
