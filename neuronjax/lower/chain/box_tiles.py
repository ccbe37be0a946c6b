"""Tiles of a box in SBUF: made, loaded, and walked over."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Box, size_of
from neuronjax.lower.chain.positions import element
from neuronjax.lower.chain.shortcuts import Shortcuts, shortcuts
from neuronjax.lower.chain.spread import banks_in_psum, is_spread, spread
from neuronjax.lower.chain.tile_program import Input, Reference, TileProgram
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import dense_strides, walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import CoreSpec
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.vector_engine import TensorCopy


@dataclass
class Chain:
    """A chain in a kernel; `buffers` are those its inputs and outputs number."""

    builder: KernelBuilder
    program: TileProgram
    buffers: Sequence[Buffer]
    #: Tiles per input that is loaded in a loop.
    slots: int
    #: Whether the Tensor engine is free to spread rows over partitions.
    spreads: bool = False
    #: Values that somebody wants in tiles, as they are.
    wanted: frozenset[Reference] = frozenset()

    @functools.cached_property
    def shortcuts(self) -> Shortcuts:
        """Operations that need no instruction of their own."""
        return shortcuts(self.program, self.wanted)


@dataclass
class BoxTiles:
    """The tiles of one box."""

    chain: Chain
    box: Box
    known: dict[Reference, Access]
    #: Whether all of every row is in the box.
    is_whole: bool = False
    #: Banks of rows that stay in PSUM.
    banks: float = 0
    #: Where some values are wanted.
    places: Mapping[Reference, Access] = field(default_factory=dict)

    @property
    def program(self) -> TileProgram:
        return self.chain.program

    @property
    def before(self) -> Mapping[int, int]:
        return self.chain.shortcuts.before

    @property
    def core(self) -> CoreSpec:
        return self.chain.builder.core

    def tile(self, axes: frozenset[int], dtype: ElementType, name: str, slots: int = 1) -> Access:
        """A new tile for a value that varies along `axes`, seen with its own axes only."""
        sizes = tuple(axis.size for axis in self.box.free if axis.dim in axes)
        return self._dense_tile(sizes, dtype, name, slots)

    def _dense_tile(
        self, sizes: tuple[int, ...], dtype: ElementType, name: str, slots: int
    ) -> Access:
        slot = self._slot() if slots > 1 else ZERO
        buffer = self.chain.builder.tile(
            (self.box.count, *sizes), dtype, slots=1 if slot == ZERO else slots, name=name
        )
        return Access(
            buffer=buffer,
            partitions=self.box.count,
            dims=tile_access(buffer, sizes, dense_strides(sizes)).dims,
            slot=slot,
        )

    def _slot(self) -> Affine:
        """The innermost loop variables decide which of two tiles is used."""
        variables = sorted({name for at in self.box.position.values() for name in at.variables})
        return Affine(0, tuple((name, 1) for name in variables))

    def broadcast(self, access: Access, axes: frozenset[int], over: Sequence[Axis]) -> Access:
        """An access to a tile of a value along `axes`, walked over all of `over`."""
        own = [axis for axis in self.box.free if axis.dim in axes]
        strides = dict(zip(own, dense_strides([axis.size for axis in own]), strict=True))
        base = access.buffer
        walked = tile_access(
            base,
            [axis.size for axis in over],
            [strides.get(axis, 0) for axis in over],
            partitions=access.partitions,
        )
        return replace(access, dims=walked.dims)

    def part(
        self, access: Access, axes: frozenset[int], at: Mapping[Axis, int], over: Sequence[Axis]
    ) -> Access:
        """A tile of a value along `axes` at indices of some free axes, walked over others."""
        own = [axis for axis in self.box.free if axis.dim in axes]
        strides = dict(zip(own, dense_strides([axis.size for axis in own]), strict=True))
        start = sum(strides.get(axis, 0) * index for axis, index in at.items())
        assert isinstance(access.offset, Affine)
        return replace(self.broadcast(access, axes, over), offset=access.offset + start)

    def load(self, number: int) -> Access:
        source = self.program.inputs[number]
        assert source.buffer is not None
        dtype = storage_of(source.dtype).dtype
        own = [axis for axis in self.box.free if axis.dim in source.axes]
        is_row = not any(source.strides[axis.dim] for axis in self.box.partitions)
        builder, count = self.chain.builder, size_of(own)
        is_row = is_row and self.chain.spreads
        if is_row and is_spread(builder, self.box.count, count, dtype, self.banks):
            row = self.hbm(source.buffer, source.strides, source.offset, own)
            return self._spread(row, source, dtype)
        dst = self.tile(source.axes, dtype, "in", self.chain.slots)
        spread = source.spread(builder.tuning.close_elements)
        if own and spread == abs(source.strides[own[-1].dim] * own[-1].step):
            self._load_whole_rows(source, own, dst)
            return dst
        src = self.hbm(source.buffer, source.strides, source.offset, [*self.box.partitions, *own])
        builder.emit(DmaCopy(dst=dst, src=src))
        return dst

    def _load_whole_rows(self, source: Input, own: Sequence[Axis], dst: Access) -> None:
        """Rows with what lies between their elements, which transfers move one by one."""
        assert source.buffer is not None
        *outer, inner = own
        step = source.strides[inner.dim] * inner.step
        span = abs(step) * (inner.size - 1) + 1
        first = min(0, step * (inner.size - 1))
        between = Axis(len(source.strides), span)
        rows = self._dense_tile(
            (*(axis.size for axis in outer), span), dst.element_type, "rows", self.chain.slots
        )
        src = self.hbm(
            source.buffer,
            (*source.strides, 1),
            source.offset + first,
            [*self.box.partitions, *outer, between],
        )
        self.chain.builder.emit(DmaCopy(dst=rows, src=src))
        sizes = [axis.size for axis in own]
        strides = [*dense_strides([*sizes[:-1], span])[:-1], step]
        walked = tile_access(rows.buffer, sizes, strides, offset=-first, slot=rows.slot)
        elementwise.copy(self.chain.builder, dst, replace(walked, partitions=rows.partitions))

    def _spread(self, row: Access, source: Input, dtype: ElementType) -> Access:
        """A row of memory in all partitions, by the Tensor engine."""
        builder = self.chain.builder
        total = spread(builder, row, self.box.count)
        src = tile_access(total, [row.elements], [1])
        banks = banks_in_psum(builder, row.elements, self.banks)
        if banks is not None:
            self.banks += banks
            sizes = [axis.size for axis in self.box.free if axis.dim in source.axes]
            return replace(src, dims=tile_access(total, sizes, dense_strides(sizes)).dims)
        dst = self.tile(source.axes, dtype, "in")
        builder.emit(TensorCopy(dst=replace(dst, dims=src.dims), src=src))
        return dst

    def hbm(
        self, buffer: int, strides: Sequence[int], offset: Affine, axes: Sequence[Axis]
    ) -> Access:
        return walk(
            self.chain.buffers[buffer],
            element(offset, self.box.position, strides),
            [axis.size for axis in axes],
            [strides[axis.dim] * axis.step for axis in axes],
        )

    def is_stored(self, reference: Reference) -> bool:
        return any(output.value == reference for output in self.program.outputs)
