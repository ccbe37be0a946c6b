"""Views of values: strides over an HBM buffer. Layout operations change views, not memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer, Dim, RegisterOffset


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))


@dataclass(frozen=True, slots=True)
class View:
    """Element (i, j, …) of a value is element `offset` + Σ index · stride of `buffer`.

    The offset may depend on the variables of the program's loops around.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: Affine = ZERO

    @property
    def is_dense(self) -> bool:
        """Whether it is all of its buffer, in order."""
        return (
            self.offset == ZERO
            and self.normal.strides == dense_strides(self.normal.shape)
            and math.prod(self.shape) == self.buffer.elements
        )

    @property
    def normal(self) -> View:
        """The view of its elements in the same order without dimensions of size 1."""
        return self.along([axis for axis, size in enumerate(self.shape) if size != 1])

    def along(self, axes: Sequence[int]) -> View:
        """The elements along some dimensions, in this order, at the beginning of all others."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in axes),
            strides=tuple(self.strides[axis] for axis in axes),
        )

    def split(self, axis: int, count: int) -> View:
        """The same with a dimension as two, the first of `count` elements."""
        size, stride = self.shape[axis] // count, self.strides[axis]
        return replace(
            self,
            shape=(*self.shape[:axis], count, size, *self.shape[axis + 1 :]),
            strides=(*self.strides[:axis], stride * size, stride, *self.strides[axis + 1 :]),
        )

    def sliced(self, starts: Sequence[int], limits: Sequence[int], steps: Sequence[int]) -> View:
        bounds = zip(starts, limits, steps, strict=True)
        return View(
            self.buffer,
            tuple(-((start - limit) // step) for start, limit, step in bounds),
            tuple(stride * step for stride, step in zip(self.strides, steps, strict=True)),
            self.offset + sum(start * s for start, s in zip(starts, self.strides, strict=True)),
        )

    def part(self, starts: Sequence[Affine], shape: tuple[int, ...]) -> View:
        """`shape` elements from `starts` on."""
        offset = self.offset
        for start, stride in zip(starts, self.strides, strict=True):
            offset = offset + start * stride
        return replace(self, shape=shape, offset=offset)

    def reversed(self, dimensions: Sequence[int]) -> View:
        flipped = set(dimensions)
        last = sum((self.shape[axis] - 1) * self.strides[axis] for axis in flipped)
        strides = (-s if axis in flipped else s for axis, s in enumerate(self.strides))
        return replace(self, strides=tuple(strides), offset=self.offset + last)

    def broadcast(self, shape: tuple[int, ...], dimensions: Sequence[int]) -> View:
        """`dimensions` says which dimension of `shape` each own dimension is."""
        strides = [0] * len(shape)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            if size != 1:
                strides[dimensions[axis]] = stride
        return replace(self, shape=shape, strides=tuple(strides))

    def reshaped(self, shape: tuple[int, ...]) -> View | None:
        """The view of the same elements in another shape; None if no strides express it."""
        own = self.normal.coalesced()
        strides = [0] * len(shape)
        axis = len(own.shape) - 1
        left = own.shape[axis] if own.shape else 1
        step = own.strides[axis] if own.shape else 0
        for index in reversed(range(len(shape))):
            size = shape[index]
            if size == 1:
                continue
            if left == 1:
                axis -= 1
                left, step = own.shape[axis], own.strides[axis]
            if left % size:
                return None
            strides[index] = step
            step *= size
            left //= size
        return replace(self, shape=shape, strides=tuple(strides))

    def coalesced(self) -> View:
        """Without dimensions of size 1, neighbours joined where one stride walks both."""
        shape: list[int] = []
        strides: list[int] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if shape and strides[-1] == stride * size:
                shape[-1] *= size
                strides[-1] = stride
            else:
                shape.append(size)
                strides.append(stride)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def access(
        self, at: Affine | RegisterOffset | None = None, dtype: ElementType | None = None
    ) -> Access:
        """An access to all its elements in order, moved by `at` elements."""
        return walk(self.buffer, _plus(at, self.offset), self.shape, self.strides, dtype)


def _plus(at: Affine | RegisterOffset | None, offset: Affine) -> Affine | RegisterOffset:
    if isinstance(at, RegisterOffset):
        return replace(at, base=at.base + offset)
    return offset if at is None else at + offset


def walk(
    buffer: Buffer,
    offset: Affine | RegisterOffset,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: ElementType | None = None,
) -> Access:
    """An access to an HBM buffer, with as few dimensions as walk the same way."""
    joined = View(buffer, tuple(shape), tuple(strides)).coalesced()
    dims = tuple(
        Dim(stride, size) for size, stride in zip(joined.shape, joined.strides, strict=True)
    )
    return Access(buffer=buffer, offset=offset, dims=dims or (Dim(1, 1),), dtype=dtype)


def whole_view(buffer: Buffer, shape: tuple[int, ...]) -> View:
    """A buffer as a value of `shape`, dense."""
    return View(buffer, shape, dense_strides(shape))
