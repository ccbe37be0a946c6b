"""A bitonic network that sorts the rows of a tile.

Every step compares elements with partners and exchanges them where the partner comes first. Each
element has the number of its place: it decides between equals, so that all sorts are stable, and it
tells padding, which fills rows up to a power of two and comes last.

Rows lie within partitions, or each over several. Then partners in other partitions are fetched
through HBM, and each partition keeps the earlier or the later of two elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Graph
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import greatest_divisor
from neuronjax.lower.region import apply, scratch
from neuronjax.lower.values.view import walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS
from neuronjax.program.gpsimd_engine import CustomOp, Iota
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp, CustomFunction
from neuronjax.program.vector_engine import CopyPredicated, TensorCopy, TensorScalar, TensorTensor

_TRUTH = INTEGERS["uint8"]
_INT32 = INTEGERS["int32"]


@dataclass
class Network:
    """Sorts rows of `size` elements each, by a comparator of two elements of each tile.

    A partition has `rows` times `width` elements of each tile, where `width` is a power of two;
    a row lies over `spread` partitions side by side, a power of two as well, and then `rows` is 1.
    At most `piece` pairs are compared at once. If `spread` is not 1, `exchanges` are buffers in HBM
    with room from `first` on for each tile, and for the places in a row, which are float32.
    """

    builder: KernelBuilder
    comparator: Graph
    tiles: Sequence[Access]
    rows: int
    width: int
    size: int
    piece: int
    spread: int = 1
    exchanges: Sequence[Buffer] = ()
    first: Affine = ZERO
    _places: Access = field(init=False)

    def __post_init__(self) -> None:
        self._places = self._number_places()

    @property
    def _partitions(self) -> int:
        return self.tiles[0].partitions

    def sort(self) -> None:
        """Merges pairs of sorted blocks, then pairs of those, until a row is one block."""
        for half in _powers_of_two(1, self.width):
            self._step(half, mirrored=True)
            self._merge_within(half)
        for distance in _powers_of_two(1, self.spread):
            self._far_step(distance, mirrored=True)
            for nearer in reversed([*_powers_of_two(1, distance)]):
                self._far_step(nearer, mirrored=False)
            self._merge_within(self.width)

    def _merge_within(self, size: int) -> None:
        """Sorts blocks of so many elements of a partition that are bitonic."""
        for half in reversed([*_powers_of_two(1, size)]):
            self._step(half, mirrored=False)

    # Partners in the same partition

    def _step(self, half: int, *, mirrored: bool) -> None:
        """All pairs, in pieces, so that comparisons take little room.

        Element i of the lower half of a block has its partner in the upper half: `half` apart, or
        mirrored, so that the first has the last.
        """
        count = self.rows * self.width // (2 * half)
        within = max(1, half // self.piece)
        blocks = 1 if within > 1 else greatest_divisor(count, max(1, self.piece // half))
        loop = self.builder.loop
        with self.builder.recycling(), loop(count // blocks) as block, loop(within) as part:
            pairs = _Pairs(half, mirrored, blocks, half // within, block, part)
            self._exchange_pairs(pairs)

    def _exchange_pairs(self, pairs: _Pairs) -> None:
        low, high = ([pairs.side(tile, side) for tile in self.tiles] for side in (0, 1))
        first, second = pairs.side(self._places, 0), pairs.side(self._places, 1)
        swap = self._is_before(high, low, second, first)
        for left, other in zip((*low, first), (*high, second), strict=True):
            _exchange(self.builder, left, other, swap)

    # Partners in other partitions

    def _far_step(self, distance: int, *, mirrored: bool) -> None:
        """Keeps the earlier of each element and its partner `distance` partitions further on, and
        the later one there; mirrored, in blocks of twice as many partitions."""
        mine = (*self.tiles, self._places)
        for tile, exchange in zip(mine, self.exchanges, strict=True):
            everything = walk(exchange, self.first, (self._partitions * self.width,), (1,))
            self.builder.emit(DmaCopy(dst=everything, src=tile))
        count = min(self.piece, max(1, self.width // 2))
        with self.builder.recycling(), self.builder.loop(self.width // count) as part:
            upper = self._is_upper(distance)
            start = part * count
            first = start * -1 + (self.width - count) if mirrored else start
            near = [_columns(tile, start, count) for tile in mine]
            far = [
                self._fetch(tile, exchange, first, distance, mirrored)
                for tile, exchange in zip(near, self.exchanges, strict=True)
            ]
            earlier = self._is_before(far[:-1], near[:-1], far[-1], near[-1])
            taken = self._both(AluOp.NOT_EQUAL, earlier, _columns(upper, ZERO, count, 0))
            for own, other in zip(near, far, strict=True):
                _take(self.builder, own, other, taken)

    def _fetch(
        self, near: Access, exchange: Buffer, first: Affine, distance: int, mirrored: bool
    ) -> Access:
        """The partners of some columns: those from `first` on of other partitions, in reverse
        order if mirrored."""
        block, count = 2 * distance, near.free_elements
        start = block - 1 if mirrored else distance
        partners = ((block, -1),) if mirrored else ((2, -distance), (distance, 1))
        sizes, steps = zip((self._partitions // block, block), *partners, strict=True)
        far = scratch(self.builder, near)
        strides = (*(step * self.width for step in steps), 1)
        src = walk(exchange, self.first + first + start * self.width, (*sizes, count), strides)
        self.builder.emit(DmaCopy(dst=far, src=src))
        return _columns(far, Affine(count - 1), count, -1) if mirrored else far

    def _is_upper(self, distance: int) -> Access:
        """A column: whether a partition is in the upper half of its block."""
        number = self.builder.tile((self._partitions, 1), _INT32)
        column = tile_access(number, (1,), (1,))
        self.builder.emit(Iota(dst=column, pattern=(Dim(0, 1),), channel_multiplier=1))
        self._mask(column, distance)
        upper = scratch(self.builder, column, _TRUTH)
        self.builder.emit(
            TensorScalar(dst=upper, data=column, op0=AluOp.NOT_EQUAL, operand0=Immediate(0.0))
        )
        return upper

    # Both

    def _number_places(self) -> Access:
        """The number of each element in its row, as float32: 0, 1, …"""
        places = scratch(self.builder, self.tiles[0], FLOAT32)
        counted = replace(places, dtype=_INT32)
        pattern = (Dim(0, self.rows), Dim(1, self.width))
        every = self.width if self.spread > 1 else 0
        self.builder.emit(Iota(dst=counted, pattern=pattern, channel_multiplier=every))
        if self.spread > 1:
            self._mask(counted, self.spread * self.width - 1)
        self.builder.emit(TensorCopy(dst=places, src=counted))
        return places

    def _mask(self, numbers: Access, bits: int) -> None:
        self.builder.emit(
            TensorScalar(
                dst=numbers, data=numbers, op0=AluOp.BITWISE_AND, operand0=Immediate(bits, _INT32)
            )
        )

    def _is_before(
        self, ones: Sequence[Access], others: Sequence[Access], first: Access, second: Access
    ) -> Access:
        """The truth value of whether `ones`, at the places `first`, come before `others`, at the
        places `second`: padding last, equals in the order of their places."""
        is_less = self._compare(ones, others)
        is_greater = self._compare(others, ones)
        before = self._both(AluOp.GREATER, second, first)
        before = self._both(AluOp.GREATER, before, is_greater)
        before = self._both(AluOp.MAXIMUM, before, is_less)
        if self.spread * self.width > self.size:
            before = self._both(AluOp.MAXIMUM, before, self._is_padding(second))
            before = self._both(AluOp.GREATER, before, self._is_padding(first))
        return before

    def _compare(self, ones: Sequence[Access], others: Sequence[Access]) -> Access:
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
    """Some pairs of a step: `count` of each of `blocks` blocks, as far on as loop variables say."""

    half: int
    mirrored: bool
    blocks: int
    count: int
    block: Affine
    part: Affine

    def side(self, tile: Access, upper: int) -> Access:
        """The lower or the upper one of each pair."""
        size = 2 * self.half
        direction = -1 if self.mirrored and upper else 1
        first = (size - 1 if self.mirrored else self.half) if upper else 0
        start = self.block * (self.blocks * size) + self.part * (self.count * direction) + first
        return tile_access(tile.buffer, (self.blocks, self.count), (size, direction), offset=start)


def _columns(tile: Access, start: Affine, count: int, stride: int = 1) -> Access:
    """`count` elements of each partition, from `start` on."""
    return replace(tile, offset=start, dims=(Dim(stride, count),))


def _powers_of_two(first: int, end: int) -> Iterator[int]:
    """The powers of two from `first`, itself one, to `end`, which is left out."""
    while first < end:
        yield first
        first *= 2


def _exchange(builder: KernelBuilder, left: Access, other: Access, where: Access) -> None:
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


def _take(builder: KernelBuilder, own: Access, other: Access, where: Access) -> None:
    """Overwrites the bits of elements where a predicate holds."""
    own, other = elementwise.as_bits(own), elementwise.as_bits(other)
    if own.element_type.storage_bits <= 32:
        builder.emit(CopyPredicated(dst=own, src=other, predicate=where))
        return
    kept = scratch(builder, own)
    srcs = (where, other, own)
    builder.emit(CustomOp(dst=kept, function=CustomFunction.SELECT, srcs=srcs))
    elementwise.copy(builder, own, kept)
