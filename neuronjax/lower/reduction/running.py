"""Running sums: windows that reach from each element to the first one, or to the last.

Sums, products, maxima and minima of floating-point numbers are a scan of the Vector engine; other
regions combine elements 1, 2, 4, … apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import REDUCERS
from neuronjax.lower.chain.boxes import Chunk, Region
from neuronjax.lower.chain.positions import Position, nest, shifted
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes, tile
from neuronjax.lower.operations import reducer
from neuronjax.lower.reduction import stepwise
from neuronjax.lower.reduction.reduce import immediate, initial
from neuronjax.lower.region import apply, fingerprint, scratch
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp
from neuronjax.program.vector_engine import Memset, TensorTensorScan


def dimension(op: Op, windows: Any) -> int | None:
    """The dimension of a running reduction; None if the operation is none."""
    shape = op.operands[0].shape
    plain = (windows.strides, windows.dilations, windows.base_dilations)
    if any(step != 1 for steps in plain for step in steps):
        return None
    dims = [dim for dim, size in enumerate(windows.sizes) if size != 1]
    if len(dims) != 1 or windows.sizes[dims[0]] != shape[dims[0]]:
        return None
    axis, size = dims[0], shape[dims[0]]
    wanted = [(0, 0)] * len(shape)
    for way in ((size - 1, 0), (0, size - 1)):
        wanted[axis] = way
        if list(windows.padding) == wanted:
            return axis
    return None


def scan(
    scope: Scope,
    op: Op,
    region: Graph,
    views: Sequence[View],
    axis: int,
    backwards: bool,
    inits: Sequence[Value],
    results: Sequence[View],
) -> None:
    """results[i] = init combined with all elements up to i, or from i on if `backwards`."""
    if backwards:
        views = [view.reversed((axis,)) for view in views]
        results = [view.reversed((axis,)) for view in results]
    constants = [immediate(value) for value in inits]
    loaded = [scope.view(v) for v, known in zip(inits, constants, strict=True) if known is None]
    count, shape = len(views), views[0].shape
    dtype, name = op.results[0].dtype, reducer(op) if len(op.results) == 1 else None
    is_short = elementwise.is_float(dtype) and dtype.itemsize > 1 and name not in ("or", "and")
    operator = REDUCERS.get(name or "") if is_short else None
    dims = tuple(range(len(shape)))
    width = None
    if operator:
        width = stepwise.width_of(views[0], results[0], axis, scope.tuning, scope.unit.rates)

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        given = iter(seen[2 * count :])
        firsts = [next(given) if known is None else known for known in constants]
        if width is not None and operator is not None:
            cut = [stepwise.cut(view, axis, width) for view in seen[:2]]
            stepwise.Stepwise(builder, cut, operator, firsts[0]).run()
            return
        swept = [Swept(view, dims) for view in seen[: 2 * count]]
        sweep = Sweep(builder, shape, frozenset({axis}), swept)
        _Running(sweep, region, operator, firsts, count).run()

    key = ("running", fingerprint(region), axis, backwards, tuple(map(repr, constants)))
    scope.kernel(op.name, [op], key, [*views, *results, *loaded], [], write)


@dataclass
class _Running:
    """Operands are values 0 to count - 1 of the sweep, results the next ones."""

    sweep: Sweep
    region: Graph
    operator: AluOp | None
    firsts: Sequence[View | Immediate]
    count: int

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    def run(self) -> None:
        self.sweep.run(self._box)

    def _box(self, region: Region, position: Position) -> None:
        rows = math.prod(axis.size for axis in region.free)
        scans = self.operator is not None and rows <= self.builder.tuning.scanned_rows
        before = [
            initial(
                self.builder, first, lanes(region), rows,
                FLOAT32 if scans else value.view.buffer.dtype,
            )
            for first, value in zip(self.firsts, self.sweep.values, strict=False)
        ]  # fmt: skip
        for chunk in region.chunks:
            body = partial(self._chunk, region, chunk, before, scans)
            nest(self.builder, chunk.loops, shifted(position, chunk.base), body)

    def _chunk(
        self,
        region: Region,
        chunk: Chunk,
        before: Sequence[Access],
        scans: bool,
        position: Position,
    ) -> None:
        free = (*region.free, *chunk.free)
        tiles = [self.sweep.load(n, region, free, position) for n in range(self.count)]
        rows = math.prod(axis.size for axis in region.free)
        size = tiles[0].free_elements // rows
        if scans:
            made = [self._scanned(tiles[0], before[0], rows, size)]
        else:
            made = self._doubled(tiles, before, rows, size)
        for number, (sums, last) in enumerate(zip(made, before, strict=True)):
            elementwise.fill(self.builder, last, _part(sums, rows, size, size - 1, 1))
            result = sums
            kept = self.sweep.values[self.count + number].view.buffer.dtype
            if sums.element_type != kept:
                result = scratch(self.builder, sums, kept)
                elementwise.fill(self.builder, result, sums)
            self.sweep.store(self.count + number, region, free, position, result)

    def _scanned(self, data: Access, before: Access, rows: int, size: int) -> Access:
        """Row by row, in float32."""
        assert self.operator is not None
        made = tile(self.builder, data.partitions, (rows * size,), FLOAT32)
        unit = tile(self.builder, data.partitions, (1,), FLOAT32)
        self.builder.emit(Memset(dst=unit, value=Immediate(1.0)))
        ones = replace(unit, dims=(Dim(0, size),))
        for row in range(rows):
            self.builder.emit(
                TensorTensorScan(
                    dst=_row(made, row, size), data0=ones, data1=_row(data, row, size),
                    initial=_row(before, row, 1), op0=AluOp.MULTIPLY, op1=self.operator,
                )
            )  # fmt: skip
        return made

    def _doubled(
        self, tiles: list[Access], before: Sequence[Access], rows: int, size: int
    ) -> list[Access]:
        """Each element with the one 1, 2, 4, … before it; what came before the tile at last."""
        distance = 1
        while distance < size:
            sums = [scratch(self.builder, access) for access in tiles]
            left = size - distance
            early = [_part(access, rows, size, 0, left) for access in tiles]
            late = [_part(access, rows, size, distance, left) for access in tiles]
            into = [_part(access, rows, size, distance, left) for access in sums]
            apply(self.builder, self.region, (*early, *late), into)
            for old, new in zip(tiles, sums, strict=True):
                first = _part(old, rows, size, 0, distance)
                elementwise.copy(self.builder, _part(new, rows, size, 0, distance), first)
            tiles, distance = sums, 2 * distance
        made = [scratch(self.builder, access) for access in tiles]
        spread = [
            replace(access, dims=tile_access(access.buffer, (rows, size), (1, 0)).dims)
            for access in before
        ]
        apply(self.builder, self.region, (*spread, *tiles), made)
        return made


def _part(access: Access, rows: int, size: int, first: int, count: int) -> Access:
    """`count` elements of each row of `size`, from `first` on."""
    part = tile_access(access.buffer, (rows, count), (size, 1), offset=first)
    return replace(access, dims=part.dims, offset=part.offset)


def _row(access: Access, row: int, size: int) -> Access:
    part = tile_access(access.buffer, (size,), (1,), offset=row * size)
    return replace(access, dims=part.dims, offset=part.offset)
