"""Tensors of a kernel: views of its buffers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.trace import current
from neuronjax.program.affine import affine
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer, Dim, Kind


@dataclass(frozen=True)
class Tensor:
    """A view of a buffer: `shape` and the stride in elements of every dimension.

    On chip, dimension 0 is the partition, whose entry of `strides` counts partitions.
    """

    storage: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    partition: int = 0
    offset: int = 0

    @property
    def dtype(self) -> ElementType:
        """The type of its elements."""
        return self.storage.dtype

    @property
    def buffer(self) -> MemoryRegion:
        """The memory that it lies in."""
        if self.storage.on_chip:
            return MemoryRegion(self.storage.memory.value)
        is_private = self.storage.kind is Kind.SCRATCH
        return MemoryRegion.private_hbm if is_private else MemoryRegion.shared_hbm

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    def __getitem__(self, index: Any) -> Tensor:
        """A slice of it. Integers keep dimension 0 of a tile and drop any other.

        OutOfBoundsError: an index lies outside; UnsupportedProgramError: a step on partitions.
        """
        entries = index if isinstance(index, tuple) else (index,)
        if ... in entries:
            place = entries.index(...)
            rest = (slice(None),) * (len(self.shape) - len(entries) + 1)
            entries = (*entries[:place], *rest, *entries[place + 1 :])
        if len(entries) > len(self.shape):
            raise IndexError(f"{current().line()}: {len(entries)} indices for shape {self.shape}.")
        entries += (slice(None),) * (len(self.shape) - len(entries))
        view, kept = self, []
        for axis, entry in enumerate(entries):
            view = view._sliced(axis, entry)
            if isinstance(entry, slice) or (axis == 0 and self.storage.on_chip):
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
        if axis == 0 and self.storage.on_chip:
            if step != 1:
                raise UnsupportedProgramError(f"{current().line()}: a step over partitions.")
            return dataclasses.replace(self, shape=shape, partition=self.partition + start)
        strides = (*self.strides[:axis], self.strides[axis] * step, *self.strides[axis + 1 :])
        offset = self.offset + start * self.strides[axis]
        return dataclasses.replace(self, shape=shape, strides=strides, offset=offset)

    def access(self) -> Access:
        """It, as an operand of an instruction."""
        walk = [Dim(stride, size) for stride, size in zip(self.strides, self.shape, strict=True)]
        on_chip = self.storage.on_chip
        return Access(
            buffer=self.storage,
            partition=affine(self.partition),
            partitions=self.shape[0] if on_chip else 1,
            offset=affine(self.offset),
            dims=tuple(walk[1:] if on_chip else walk),
        )

    def permute(self, dims: tuple[int, ...]) -> Tensor:
        """Its dimensions in the order `dims`; the partition stays the first."""
        self._check(
            sorted(dims) == list(range(self.ndim)) and not (self.storage.on_chip and dims[0]),
            f"permute{tuple(dims)}",
        )
        return self._view([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> Tensor:
        """Dimension `dim`, of size 1 and not the partition, repeated `size` times."""
        self._check(
            self.shape[dim] == 1 and not (self.storage.on_chip and dim == 0),
            f"broadcast({dim}, {size})",
        )
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return self._view(shape, (*self.strides[:dim], 0, *self.strides[dim + 1 :]))

    def expand_dim(self, dim: int) -> Tensor:
        """A new dimension of size 1 before dimension `dim`, not before the partition."""
        self._check(not (self.storage.on_chip and dim == 0), f"expand_dim({dim})")
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return self._view(shape, (*self.strides[:dim], 0, *self.strides[dim:]))

    def squeeze_dim(self, dim: int) -> Tensor:
        """Without dimension `dim`, of size 1 and not the partition."""
        self._check(
            self.shape[dim] == 1 and not (self.storage.on_chip and dim == 0), f"squeeze_dim({dim})"
        )
        shape = (*self.shape[:dim], *self.shape[dim + 1 :])
        return self._view(shape, (*self.strides[:dim], *self.strides[dim + 1 :]))

    def is_contiguous(self) -> bool:
        """Whether its elements, those of one partition on chip, lie side by side."""
        first = 1 if self.storage.on_chip else 0
        sizes, strides = self.shape[first:], self.strides[first:]
        return all(
            size == 1 or stride == math.prod(sizes[axis + 1 :])
            for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        )

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        """The same elements in another shape; they lie side by side, partitions are the same."""
        first = 1 if self.storage.on_chip else 0
        self._check(
            self.is_contiguous()
            and math.prod(shape) == self.size
            and tuple(shape[:first]) == self.shape[:first],
            f"reshape{tuple(shape)}",
        )
        strides = [math.prod(shape[axis + 1 :]) for axis in range(first, len(shape))]
        return self._view(shape, (*self.strides[:first], *strides))

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise UnsupportedProgramError(
                f"{current().line()}: {what} of a tensor of shape {self.shape} and strides "
                f"{self.strides} in {self.buffer.value} is no view of it; copy it."
            )

    def _view(self, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))


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
