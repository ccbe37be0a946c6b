"""`sort`: a bitonic network along the free dimension, one row per walk.

Every step compares elements with partners and exchanges them where the partner comes first. Each
element has the number of its place: it decides between equals, so that all sorts are stable, and it
tells padding, which fills rows up to a power of two and comes last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph, Op
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Region
from neuronjax.lower.chain.sweep import Position, Sweep, Swept
from neuronjax.lower.control import host
from neuronjax.lower.region import apply, fingerprint, is_emittable, scratch
from neuronjax.lower.scope import Scope
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder, room_of, tile_access
from neuronjax.machine.specs import WORD_BYTES, CoreSpec
from neuronjax.program.affine import Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, ElementType, bytes_of
from neuronjax.program.gpsimd_engine import CustomOp, Iota
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp, CustomFunction
from neuronjax.program.vector_engine import CopyPredicated, TensorCopy, TensorScalar, TensorTensor

_TRUTH = INTEGERS["uint8"]
_TILES = 3
"""Tiles that an operation of a comparator takes at most, in words."""


def sort(scope: Scope, op: Op) -> None:
    """All operands in the order of the comparator."""
    (comparator,) = op.regions
    axis = op.attributes.get("dimension", -1) % len(op.operands[0].shape)
    views = [scope.view(value) for value in op.operands]
    core, dtypes = scope.unit.target.core, [view.buffer.dtype for view in views]
    size = op.operands[0].shape[axis]
    least = _pieces(scope.tuning.sort_piece)[-1]
    longest = longest_row(core, scope.tuning, dtypes, comparator, least)
    if not is_emittable(comparator) or size > longest:
        host.lower(scope, op)
        return
    results = [whole_view(scope.result(value), value.shape) for value in op.results]
    sort_views(scope, op, comparator, views, axis, results)


def _pieces(most: int) -> Sequence[int]:
    """Returns how many pairs may be compared at once, the most first."""
    return [most >> halvings for halvings in range(4)]


def longest_row(
    core: CoreSpec, tuning: Tuning, dtypes: Sequence[ElementType], comparator: Graph, piece: int
) -> int:
    """The greatest number of elements that can be sorted within a partition, `piece` at once."""
    width = sum(map(bytes_of, dtypes)) + WORD_BYTES
    comparison = len(comparator.operations) * _TILES * piece * WORD_BYTES
    room = room_of(core, tuning) - comparison
    return 1 << int(math.log2(max(room, width) / width))


def _piece(scope: Scope, views: Sequence[View], comparator: Graph, size: int) -> int:
    """The most pairs at once with which a row of so many elements can be sorted."""
    core, dtypes = scope.unit.target.core, [view.buffer.dtype for view in views]
    pieces = _pieces(scope.tuning.sort_piece)
    return next(
        (
            piece
            for piece in pieces
            if size <= longest_row(core, scope.tuning, dtypes, comparator, piece)
        ),
        pieces[-1],
    )


def sort_views(
    scope: Scope,
    op: Op,
    comparator: Graph,
    views: Sequence[View],
    axis: int,
    results: Sequence[View],
) -> None:
    """results = the first elements of the sorted rows of `views` along `axis`."""
    count, shape = len(views), views[0].shape
    kept = results[0].shape[axis]
    dims = tuple(range(len(shape)))
    piece = _piece(scope, views, comparator, shape[axis])

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        swept = [Swept(view, dims) for view in seen]
        sweep = Sweep(builder, shape, frozenset({axis}), swept, words=2, whole=True)
        _Sort(sweep, comparator, count, shape[axis], kept, piece).run()

    key = ("sort", fingerprint(comparator), axis, kept)
    scope.kernel(op.name.rpartition(".")[2], [op], key, [*views, *results], [], write)


@dataclass
class _Sort:
    """Operands are values 0 to count - 1 of the sweep, results the next ones."""

    sweep: Sweep
    comparator: Graph
    count: int
    size: int
    kept: int
    piece: int

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    @property
    def padded(self) -> int:
        """The length of a row in its tile: a power of two."""
        return 1 << (self.size - 1).bit_length()

    def run(self) -> None:
        self.sweep.run(self._box)

    def _box(self, region: Region, position: Position) -> None:
        (chunk,) = region.chunks
        rows = math.prod(axis.size for axis in region.free)
        tiles = [self._load(number, region, chunk.free, position) for number in range(self.count)]
        if self.size > 1:
            network = Network(
                self.builder, self.comparator, tiles, rows, self.padded, self.size, self.piece
            )
            network.sort()
        for number, tile in enumerate(tiles):
            kept = _columns(tile, rows, self.padded, 0, self.kept)
            axes = [replace(axis, size=self.kept) for axis in chunk.free]
            free = (*region.free, *axes)
            self.sweep.store(self.count + number, region, free, position, kept)

    def _load(self, number: int, region: Region, row: Sequence[Axis], position: Position) -> Access:
        rows = math.prod(axis.size for axis in region.free)
        src = self.sweep.hbm(number, [*region.partitions, *region.free, *row], position)
        tile = self.sweep.tile(region, (rows, self.padded), src.element_type)
        self.builder.emit(DmaCopy(dst=_columns(tile, rows, self.padded, 0, self.size), src=src))
        if self.padded > self.size:
            rest = _columns(tile, rows, self.padded, self.size, self.padded - self.size)
            elementwise.fill(self.builder, elementwise.as_bits(rest), Immediate(0))
        return tile


def _columns(tile: Access, rows: int, size: int, first: int, count: int) -> Access:
    """`count` elements of each row of `size`, from `first` on."""
    return tile_access(tile.buffer, (rows, count), (size, 1), offset=first)


@dataclass
class Network:
    """Sorts `rows` rows of `padded` elements, of which `size` count, in each partition of tiles."""

    builder: KernelBuilder
    comparator: Graph
    tiles: Sequence[Access]
    rows: int
    padded: int
    size: int
    piece: int

    def sort(self) -> None:
        """Merges pairs of sorted blocks, then pairs of those, until a row is one block."""
        places = self._places()
        for pairs in _steps(self.rows, self.padded):
            with self.builder.recycling():
                self._step(pairs, places)

    def _step(self, pairs: _Pairs, places: Access) -> None:
        """All pairs, in pieces, so that comparisons take little room."""
        within = max(1, pairs.half // self.piece)
        blocks = 1 if within > 1 else _divisor(pairs.blocks, max(1, self.piece // pairs.half))
        loop = self.builder.loop
        with loop(pairs.blocks // blocks) as block, loop(within) as part:
            self._piece(_Piece(pairs, blocks, pairs.half // within, block, part), places)

    def _piece(self, piece: _Piece, places: Access) -> None:
        low, high = ([piece.side(tile, side) for tile in self.tiles] for side in (0, 1))
        first, second = piece.side(places, 0), piece.side(places, 1)
        swap = self._swap(low, high, first, second)
        for left, other in zip((*low, first), (*high, second), strict=True):
            exchange(self.builder, left, other, swap)

    def _places(self) -> Access:
        """The number of each element in its row, as float32: 0, 1, …"""
        places = scratch(self.builder, self.tiles[0], FLOAT32)
        counted = replace(places, dtype=INTEGERS["int32"])
        pattern = (Dim(0, self.rows), Dim(1, self.padded))
        self.builder.emit(Iota(dst=counted, pattern=pattern))
        self.builder.emit(TensorCopy(dst=places, src=counted))
        return places

    def _swap(
        self, low: Sequence[Access], high: Sequence[Access], first: Access, second: Access
    ) -> Access:
        """Where `high` comes before `low`: padding last, equals in the order of their places."""
        wrong = self._before(high, low)
        right = self._before(low, high)
        swap = self._both(AluOp.GREATER, first, second)
        swap = self._both(AluOp.GREATER, swap, right)
        swap = self._both(AluOp.MAXIMUM, swap, wrong)
        if self.padded > self.size:
            swap = self._both(AluOp.MAXIMUM, swap, self._is_padding(first))
            swap = self._both(AluOp.GREATER, swap, self._is_padding(second))
        return swap

    def _before(self, ones: Sequence[Access], others: Sequence[Access]) -> Access:
        answer = scratch(self.builder, ones[0], _TRUTH)
        pairs = zip(ones, others, strict=True)
        with self.builder.recycling():
            srcs = [access for pair in pairs for access in pair]
            apply(self.builder, self.comparator, srcs, [answer])
        return answer

    def _both(self, op: AluOp, left: Access, other: Access) -> Access:
        answer = scratch(self.builder, left, _TRUTH)
        self.builder.emit(TensorTensor(dst=answer, data1=left, data2=other, op=op))
        return answer

    def _is_padding(self, places: Access) -> Access:
        answer = scratch(self.builder, places, _TRUTH)
        last = Immediate(float(self.size))
        self.builder.emit(
            TensorScalar(dst=answer, data=places, op0=AluOp.GREATER_EQUAL, operand0=last)
        )
        return answer


@dataclass(frozen=True)
class _Pairs:
    """Element i of the lower half of a block and its partner in the upper half.

    Partners lie `half` apart, or mirrored: the first with the last.
    """

    blocks: int
    half: int
    mirrored: bool


@dataclass(frozen=True)
class _Piece:
    """Some pairs: `count` of each of `blocks` blocks, as far on as loop variables say."""

    pairs: _Pairs
    blocks: int
    count: int
    block: Affine
    part: Affine

    def side(self, tile: Access, upper: int) -> Access:
        """One of each pair."""
        size = 2 * self.pairs.half
        direction = -1 if self.pairs.mirrored and upper else 1
        first = (size - 1 if self.pairs.mirrored else self.pairs.half) if upper else 0
        start = self.block * (self.blocks * size) + self.part * (self.count * direction) + first
        strides = (size, direction)
        return tile_access(tile.buffer, (self.blocks, self.count), strides, offset=start)


def _divisor(number: int, most: int) -> int:
    """The greatest divisor up to `most`."""
    return max(divisor for divisor in range(1, most + 1) if number % divisor == 0)


def _steps(rows: int, padded: int) -> Iterator[_Pairs]:
    size = 2
    while size <= padded:
        half = size // 2
        yield _Pairs(rows * padded // size, half, mirrored=True)
        while half > 1:
            half //= 2
            yield _Pairs(rows * padded // (2 * half), half, mirrored=False)
        size *= 2


def exchange(builder: KernelBuilder, left: Access, other: Access, where: Access) -> None:
    """Swaps the bits of elements where a predicate holds."""
    left, other = elementwise.as_bits(left), elementwise.as_bits(other)
    kept = scratch(builder, left)
    if left.element_type.storage_bits > 32:
        select = CustomFunction.SELECT
        builder.emit(CustomOp(dst=kept, function=select, srcs=(where, other, left)))
        builder.emit(CustomOp(dst=other, function=select, srcs=(where, left, other)))
        elementwise.copy(builder, left, kept)
        return
    builder.emit(TensorCopy(dst=kept, src=left))
    builder.emit(CopyPredicated(dst=left, src=other, predicate=where))
    builder.emit(CopyPredicated(dst=other, src=kept, predicate=where))


RULES = {"sort": sort}
"""Operation -> rule."""
