"""A kernel while it is traced: its buffers, instructions and the user's lines."""

from __future__ import annotations

import dataclasses
import math
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field

from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError
from neuronjax.program.affine import affine
from neuronjax.program.element_types import ElementType
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Kind, Memory


@dataclass
class Trace:
    """What a kernel has written so far; `file` is the kernel's source, `accumulated` are the
    tiles of PSUM that a product was written to."""

    file: str
    buffers: list[Buffer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    accumulated: set[Tensor] = field(default_factory=set)

    def buffer(
        self, memory: Memory, dtype: ElementType, shape: tuple[int, ...], kind: Kind
    ) -> Buffer:
        """A new buffer."""
        name = f"{kind.value}{len(self.buffers)}"
        buffer = Buffer(name=name, memory=memory, dtype=dtype, shape=shape, kind=kind)
        self.buffers.append(buffer)
        return buffer

    def add(self, instruction: Instruction) -> None:
        """Appends an instruction, at the kernel's line that is running."""
        line = self.line()
        if line not in self.lines:
            self.lines.append(line)
        self.instructions.append(dataclasses.replace(instruction, part=self.lines.index(line)))

    def line(self) -> str:
        """``file:line`` of the innermost frame in the kernel's file."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename != self.file and frame.f_back is not None:
            frame = frame.f_back
        return f"{self.file}:{frame.f_lineno}"


_CURRENT: ContextVar[Trace] = ContextVar("trace")


def tracing(trace: Trace) -> object:
    """Makes `trace` the current one; returns the token for `ended`."""
    return _CURRENT.set(trace)


def ended(token: object) -> None:
    """Restores what was current before `tracing`."""
    _CURRENT.reset(token)  # type: ignore[arg-type]


def is_tracing() -> bool:
    """Whether a kernel is being traced."""
    return _CURRENT.get(None) is not None


def current() -> Trace:
    """UnsupportedProgramError: no kernel is being traced."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise UnsupportedProgramError(
            "nki.language and nki.isa work inside a kernel: call nki.simulate(kernel)(*arrays)."
        ) from None


@dataclass(frozen=True)
class Tensor:
    """A view of a buffer: `shape` and the stride in elements of every dimension.

    On chip, dimension 0 is the partition, whose entry of `strides` counts partitions.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    partition: int = 0
    offset: int = 0

    @property
    def dtype(self) -> ElementType:
        """The type of its elements."""
        return self.buffer.dtype

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Tensor:
        """A slice of it. Integers keep dimension 0 of a tile and drop any other.

        OutOfBoundsError: an index lies outside; UnsupportedProgramError: a step on partitions.
        """
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) > len(self.shape):
            raise IndexError(f"{current().line()}: {len(entries)} indices for shape {self.shape}.")
        entries += (slice(None),) * (len(self.shape) - len(entries))
        view, kept = self, []
        for axis, entry in enumerate(entries):
            view = view._sliced(axis, entry)
            if isinstance(entry, slice) or (axis == 0 and self.buffer.on_chip):
                kept.append(axis)
        return dataclasses.replace(
            view,
            shape=tuple(view.shape[axis] for axis in kept),
            strides=tuple(view.strides[axis] for axis in kept),
        )

    def _sliced(self, axis: int, entry: int | slice) -> Tensor:
        size = self.shape[axis]
        start, stop, step = _bounds(entry, size)
        if not 0 <= start < stop <= size or step < 1:
            raise OutOfBoundsError(
                f"{current().line()}: {entry} of dimension {axis}, which has {size} elements."
            )
        shape = (*self.shape[:axis], -(-(stop - start) // step), *self.shape[axis + 1 :])
        if axis == 0 and self.buffer.on_chip:
            if step != 1:
                raise UnsupportedProgramError(f"{current().line()}: a step over partitions.")
            return dataclasses.replace(self, shape=shape, partition=self.partition + start)
        strides = (*self.strides[:axis], self.strides[axis] * step, *self.strides[axis + 1 :])
        offset = self.offset + start * self.strides[axis]
        return dataclasses.replace(self, shape=shape, strides=strides, offset=offset)

    def access(self) -> Access:
        """It, as an operand of an instruction."""
        walk = [Dim(stride, size) for stride, size in zip(self.strides, self.shape, strict=True)]
        on_chip = self.buffer.on_chip
        return Access(
            buffer=self.buffer,
            partition=affine(self.partition),
            partitions=self.shape[0] if on_chip else 1,
            offset=affine(self.offset),
            dims=tuple(walk[1:] if on_chip else walk),
        )


def _bounds(entry: int | slice, size: int) -> tuple[int, int, int]:
    if isinstance(entry, int):
        start = entry + size if entry < 0 else entry
        return start, start + 1, 1
    start = 0 if entry.start is None else entry.start
    stop = size if entry.stop is None else entry.stop
    return start, stop, 1 if entry.step is None else entry.step


def whole(buffer: Buffer) -> Tensor:
    """All of a buffer."""
    first = 1 if buffer.on_chip else 0
    shape = buffer.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(first, len(shape))]
    return Tensor(buffer, shape, (*([1] * first), *strides))
