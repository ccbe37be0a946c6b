"""Copies that turn a tensor: neighbours in the source lie apart in the target, and the reverse.

A DMA engine moves such elements one by one. Blocks that are loaded and stored in long runs, and
turned by the Tensor engine in between, take a fifth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from neuronjax.formats import BFLOAT16, FLOAT32
from neuronjax.lower.chain.elementwise import as_bits
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS, CoreSpec
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, ElementType
from neuronjax.program.operand import Buffer, Memory
from neuronjax.program.tensor_engine import TensorTranspose
from neuronjax.program.vector_engine import TensorCopy

_WORDS: Mapping[int, ElementType] = {8: INTEGERS["uint8"], 16: BFLOAT16, 32: FLOAT32}
"""Bits of an element -> type in which it goes into the array."""
_TURNED: Mapping[int, ElementType] = {**_WORDS, 8: INTEGERS["uint16"]}
"""Bits of an element -> type in which it comes out: bytes have a zero in front of them."""


@dataclass(frozen=True)
class Turn:
    """A copy of `shape`; `across` is the dimension of neighbours in the source, and `along` that
    of neighbours in the target."""

    shape: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    across: int
    along: int


def turn_of(source: View, target: View, core: CoreSpec, tuning: Tuning) -> Turn | None:
    """How a copy is done in blocks, if that is faster."""
    shape, strides, others = joined(source, target)
    if (
        not core.moves_bits
        or source.buffer.dtype.storage_bits not in _WORDS
        or math.prod(shape) < tuning.worthwhile_elements
        or 1 not in strides
        or 1 not in others
        or min(*strides, *others) < 1
    ):
        return None
    across, along = strides.index(1), others.index(1)
    if across == along or min(shape[across], shape[along]) < tuning.copied_run:
        return None
    return Turn(shape, strides, others, across, along)


def joined(source: View, target: View) -> tuple[tuple[int, ...], ...]:
    """Shape and strides of both with as few dimensions as walk alike."""
    joined: list[tuple[int, int, int]] = []
    for size, stride, other in zip(source.shape, source.strides, target.strides, strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1:] == (stride * size, other * size):
            size *= joined.pop()[0]
        joined.append((size, stride, other))
    shape, strides, others = zip(*joined, strict=True) if joined else ((), (), ())
    return shape, strides, others


@dataclass(frozen=True)
class _Segment:
    """`trips` times `blocks` blocks of `rows` along a dimension."""

    first: int
    trips: int
    blocks: int
    rows: int

    @property
    def size(self) -> int:
        return self.blocks * self.rows


def _segments(size: int) -> Iterator[_Segment]:
    """A dimension in tiles of several blocks, in blocks, and what remains."""
    whole = MOVING_COLUMNS  # of which the blocks fill a bank of PSUM
    first = size - size % whole
    if first:
        yield _Segment(0, first // whole, whole // PARTITIONS, PARTITIONS)
    blocks, rest = divmod(size - first, PARTITIONS)
    if blocks:
        yield _Segment(first, 1, blocks, PARTITIONS)
    if rest:
        yield _Segment(size - rest, 1, 1, rest)


def write_turned(builder: KernelBuilder, turn: Turn, source: View, target: View) -> None:
    """Writes the kernel of a copy that swaps two dimensions."""
    others = [d for d in range(len(turn.shape)) if d not in (turn.across, turn.along)]
    with ExitStack() as stack:
        starts = [source.offset, target.offset]
        for d in others:
            variable = stack.enter_context(builder.loop(turn.shape[d]))
            strides = (turn.source[d], turn.target[d])
            starts = [at + variable * by for at, by in zip(starts, strides, strict=True)]
        for across in _segments(turn.shape[turn.across]):
            for along in _segments(turn.shape[turn.along]):
                with builder.loop(across.trips) as i, builder.loop(along.trips) as j:
                    places = (i * across.size + across.first, j * along.size + along.first)
                    _Tile(builder, turn, source, target, across, along).write(starts, places)


@dataclass
class _Tile:
    """A tile to turn: `across` tells its part of the dimension of neighbours in the source."""

    builder: KernelBuilder
    turn: Turn
    source: View
    target: View
    across: _Segment
    along: _Segment

    def write(self, starts: list[Affine], places: tuple[Affine, Affine]) -> None:
        turn, across, along = self.turn, self.across, self.along
        dtype = _WORDS[self.source.buffer.dtype.storage_bits]
        begin = [
            at + places[0] * strides[turn.across] + places[1] * strides[turn.along]
            for at, strides in zip(starts, (turn.source, turn.target), strict=True)
        ]
        names = sorted({name for at in begin for name in at.variables})
        slot = Affine(0, tuple((name, 1) for name in names)) if names else ZERO
        slots = 2 if names else 1
        loaded = self.builder.tile(
            (along.rows, along.blocks, across.size), dtype, slots=slots, name="row"
        )
        turned = self.builder.tile(
            (across.rows, across.blocks, along.size), dtype, slots=slots, name="column"
        )
        step = turn.source[turn.along]
        src = walk(
            self.source.buffer, begin[0], (along.rows, along.blocks, across.size),
            (step, step * along.rows, 1), dtype,
        )  # fmt: skip
        everything = tile_access(loaded, (along.size // along.rows * across.size,), (1,), slot=slot)
        self.builder.emit(DmaCopy(dst=everything, src=src))
        for block in range(across.blocks):
            self._block(loaded, turned, block, slot)
        step = turn.target[turn.across]
        dst = walk(
            self.target.buffer, begin[1], (across.rows, across.blocks, along.size),
            (step, step * across.rows, 1), dtype,
        )  # fmt: skip
        everything = tile_access(turned, (across.blocks * along.size,), (1,), slot=slot)
        self.builder.emit(DmaCopy(dst=dst, src=everything))

    def _block(self, loaded: Buffer, turned: Buffer, block: int, slot: Affine) -> None:
        across, along = self.across, self.along
        bits = loaded.dtype.storage_bits
        bank = self.builder.tile((across.rows, along.size), _TURNED[bits], Memory.PSUM, name="turn")
        for index in range(along.blocks):
            start = index * across.size + block * across.rows
            data = tile_access(loaded, (across.rows,), (1,), offset=start, slot=slot)
            dst = tile_access(bank, (along.rows,), (1,), offset=index * along.rows)
            self.builder.emit(TensorTranspose(dst=dst, data=data))
        dst = tile_access(turned, (along.size,), (1,), offset=block * along.size, slot=slot)
        src = tile_access(bank, (along.size,), (1,))
        if bits > 8 and self.source.buffer.dtype != loaded.dtype:  # no numbers of this type
            dst, src = as_bits(dst), as_bits(src)
        self.builder.emit(TensorCopy(dst=dst, src=src))
