"""Writing one kernel: tiles, loops and instructions in the order of one core's program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neuronjax.lower.rates import Rates
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import CoreSpec, Engine
from neuronjax.program.affine import ZERO, Affine, affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Memory, Register, RegisterOffset
from neuronjax.program.operators import DescriptorMode
from neuronjax.program.program import If, Kernel, Loop, Node, While


def room_of(core: CoreSpec, tuning: Tuning) -> int:
    """Bytes of a partition of SBUF that a kernel's large tiles may take; the rest is for others."""
    return int(core.sbuf.usable_partition_bytes * tuning.large_tile_share)


@dataclass
class KernelBuilder:
    """Collects the nodes of a kernel; addresses and semaphores come later."""

    name: str
    core: CoreSpec
    tuning: Tuning
    rates: Rates
    #: Physical cores that may share the kernel.
    cores: int = 1
    operations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    _bodies: list[list[Node]] = field(default_factory=lambda: [[]])
    _buffers: list[Buffer] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    #: Loops around what is being written, with their trips.
    around: list[tuple[str, int]] = field(default_factory=list)
    _variables: int = 0
    _transfers: int = 0
    _taken: list[Buffer] | None = None
    _free: dict[tuple[Any, ...], list[Buffer]] = field(default_factory=dict)

    def emit(self, instruction: Instruction) -> None:
        """Appends an instruction to the innermost block."""
        self._bodies[-1].append(instruction)

    def copy(self, dst: Access, src: Access, queue: int = 0) -> None:
        """A transfer. Where a register has the address, descriptors are made as the program runs:
        by hardware, or by GpSimd on a core without a generator of them."""
        mode, engine = DescriptorMode.STATIC, Engine.SYNC
        if any(isinstance(access.offset, RegisterOffset) for access in (dst, src)):
            mode = DescriptorMode.HARDWARE
            if not self.core.descriptor_engines:
                mode, engine = DescriptorMode.SOFTWARE, Engine.GPSIMD
        self.emit(DmaCopy(dst=dst, src=src, descriptors=mode, engine=engine, queue=queue))

    def tile(
        self,
        shape: Sequence[int],
        dtype: ElementType,
        memory: Memory = Memory.SBUF,
        slots: int = 1,
        name: str = "t",
    ) -> Buffer:
        """A new tile of [partitions, …]; names get a number."""
        if self._taken is None or slots > 1:
            return self._new(shape, dtype, memory, slots, name)
        kind = (memory, dtype, shape[0], math.prod(shape[1:]))
        free = self._free.get(kind)
        buffer = free.pop(0) if free else self._new(shape, dtype, memory, slots, name)
        self._taken.append(buffer)
        return buffer

    @contextmanager
    def recycling(self) -> Iterator[None]:
        """Tiles made within are nobody's afterwards: later ones of their size are the same."""
        outer, self._taken = self._taken, []
        try:
            yield
        finally:
            for buffer in self._taken:
                kind = (buffer.memory, buffer.dtype, buffer.shape[0], buffer.elements)
                self._free.setdefault(kind, []).append(buffer)
            self._taken = outer

    def _new(
        self,
        shape: Sequence[int],
        dtype: ElementType,
        memory: Memory,
        slots: int,
        name: str,
    ) -> Buffer:
        buffer = Buffer(
            name=f"{name}{len(self._buffers)}",
            memory=memory,
            dtype=dtype,
            shape=tuple(shape) if len(shape) > 1 else (*shape, 1),
            slots=slots,
        )
        self._buffers.append(buffer)
        return buffer

    def queue(self, first: int) -> int:
        """A DMA queue for the next transfer: `first` or one of three others, in turn."""
        self._transfers += 1
        return first + 2 * (self._transfers % 4)

    @property
    def tile_count(self) -> int:
        """How many tiles there are."""
        return len(self._buffers)

    def forget(self, count: int) -> None:
        """Takes back all tiles but the first `count`; nothing may use them."""
        del self._buffers[count:]

    def register(self, limit: int | None = None, name: str = "r") -> Register:
        """A new register; the program declares it under a name of its own."""
        register = Register(f"{name}{len(self.registers)}", limit)
        self.registers.append(register)
        return register

    @contextmanager
    def loop(self, trips: int | Register, name: str = "i") -> Iterator[Affine]:
        """Instructions within are repeated; yields the loop variable. One trip makes no loop."""
        if trips == 1:
            yield ZERO
            return
        variable = f"{name}{self._variables}"
        self._variables += 1
        around = list(self.around)
        if isinstance(trips, int):
            self.around.append((variable, trips))
        with self.block() as body:
            yield affine(0, **{variable: 1})
        self.around = around
        if body:
            self._bodies[-1].append(Loop(variable=variable, trips=trips, body=tuple(body)))

    @contextmanager
    def block(self) -> Iterator[list[Node]]:
        """Instructions within go to a list of their own."""
        body: list[Node] = []
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.pop()

    def branch(
        self,
        register: Register,
        then: Sequence[Node],
        otherwise: Sequence[Node] = (),
        *,
        is_usual: bool = False,
    ) -> None:
        """`then` if the register is not 0, as it is usually or not, else `otherwise`."""
        self._bodies[-1].append(
            If(
                register=register, then=tuple(then), otherwise=tuple(otherwise), is_usual=is_usual
            )
        )  # fmt: skip

    def repeat(self, condition: Sequence[Node], register: Register, body: Sequence[Node]) -> None:
        """`body` while `condition` leaves something other than 0 in the register."""
        self._bodies[-1].append(
            While(condition=tuple(condition), register=register, body=tuple(body))
        )

    def kernel(self) -> Kernel:
        """The finished kernel."""
        return Kernel(
            name=self.name,
            body=tuple(self._bodies[0]),
            buffers=tuple(self._buffers),
            operations=self.operations,
            sources=self.sources,
        )


def tile_access(
    buffer: Buffer,
    sizes: Sequence[int],
    strides: Sequence[int],
    *,
    offset: Affine | int = 0,
    partition: Affine | int = 0,
    partitions: int | None = None,
    slot: Affine = ZERO,
    dtype: ElementType | None = None,
) -> Access:
    """An access to a tile: `sizes` and `strides` of its free dimensions, neighbours joined."""
    dims: list[Dim] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1].stride == stride * size:
            dims[-1] = Dim(stride, dims[-1].size * size)
        else:
            dims.append(Dim(stride, size))
    return Access(
        buffer=buffer,
        partition=_affine(partition),
        partitions=buffer.partitions if partitions is None else partitions,
        offset=_affine(offset),
        dims=tuple(dims) or (Dim(1, 1),),
        slot=slot,
        dtype=dtype,
    )


def _affine(value: Affine | int) -> Affine:
    return Affine(value) if isinstance(value, int) else value
