"""Views of a tensor that are its elements in another shape or order."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Self

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.refusal import checked
from neuronjax.nki.tracing import current
from neuronjax.nki.unknown_values import UnknownValues

Sizes = tuple[int, ...]
Pattern = Sequence[str | Sequence[str]]
"""Names of dimensions; those in parentheses are one dimension."""


class Views(UnknownValues):
    """What a tensor can be without a copy. On chip, dimension 0 is the partition."""

    shape: Sizes
    strides: Sizes

    @checked("tensor.permute")
    def permute(self, dims: tuple[int, ...]) -> Self:
        """The tensor with dimensions in the order `dims`; the partition, or what an index chooses,
        stays the first."""
        is_order = sorted(dims) == list(range(self.ndim))
        self._check(is_order and not (self._keeps_first and dims[0]), f"permute{tuple(dims)}")
        return self._view([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    @checked("tensor.broadcast")
    def broadcast(self, dim: int, size: int) -> Self:
        """Dimension `dim`, of size 1 and not the partition, repeated `size` times."""
        is_one = self._has(dim) and self.shape[dim] == 1
        self._check(is_one and not (self._keeps_first and dim == 0), f"broadcast({dim}, {size})")
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return self._view(shape, (*self.strides[:dim], 0, *self.strides[dim + 1 :]))

    @checked("tensor.expand_dim")
    def expand_dim(self, dim: int) -> Self:
        """A new dimension of size 1 before dimension `dim`, not before the partition."""
        is_place = self._has(dim) or dim == self.ndim
        self._check(is_place and not (self._keeps_first and dim == 0), f"expand_dim({dim})")
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return self._view(shape, (*self.strides[:dim], 0, *self.strides[dim:]))

    @checked("tensor.squeeze_dim")
    def squeeze_dim(self, dim: int) -> Self:
        """The tensor without dimension `dim`, of size 1 and not the partition."""
        is_one = self._has(dim) and self.shape[dim] == 1
        self._check(is_one and not (self._keeps_first and dim == 0), f"squeeze_dim({dim})")
        shape = (*self.shape[:dim], *self.shape[dim + 1 :])
        return self._view(shape, (*self.strides[:dim], *self.strides[dim + 1 :]))

    @checked("tensor.reshape")
    def reshape(self, shape: tuple[int, ...]) -> Self:
        """The tensor's elements in another shape, with the same partitions."""
        return self._reshaped(tuple(shape), f"reshape({tuple(shape)})")

    @checked("tensor.reshape_dim")
    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> Self:
        """Dimension `dim` as several, of which one size may be -1."""
        what = f"reshape_dim({dim}, {tuple(shape)})"
        self._check(self._has(dim), what)
        sizes = inferred(shape, self.shape[dim])
        return self._reshaped((*self.shape[:dim], *sizes, *self.shape[dim + 1 :]), what)

    @checked("tensor.flatten_dims")
    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Dimensions `start_dim` to `end_dim`, with that, as one."""
        what = f"flatten_dims({start_dim}, {end_dim})"
        self._check(self._has(start_dim) and self._has(end_dim) and start_dim <= end_dim, what)
        size = math.prod(self.shape[start_dim : end_dim + 1])
        shape = (*self.shape[:start_dim], size, *self.shape[end_dim + 1 :])
        return self._reshaped(shape, what)

    @checked("tensor.rearrange")
    def rearrange(
        self,
        src_pattern: Pattern,
        dst_pattern: Pattern,
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> Self:
        """Dimensions by name, as in einops: `tile.rearrange(("b", ("h", "w")), ("b", "w", "h"),
        {"h": 4})` splits the second dimension and changes the order."""
        what = f"rearrange({src_pattern}, {dst_pattern}, {fixed_sizes})"
        fitting = rearranged(self.shape, src_pattern, dst_pattern, fixed_sizes or {})
        if fitting is None:
            raise self._no_view(what)
        split, order, shape = fitting
        return self._reshaped(split, what).permute(order)._reshaped(shape, what)

    def _has(self, dim: int) -> bool:
        return 0 <= dim < self.ndim

    def _reshaped(self, shape: tuple[int, ...], what: str) -> Self:
        first = 1 if self._keeps_first else 0
        strides = reshaped(self.shape[first:], self.strides[first:], shape[first:])
        if strides is None or shape[:first] != self.shape[:first]:
            raise self._no_view(what)
        return self._view(shape, (*self.strides[:first], *strides))

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise self._no_view(what)

    def _no_view(self, what: str) -> UnsupportedProgramError:
        return UnsupportedProgramError(
            f"{current().line()}: {what} of {self!r} with strides {self.strides} cannot be a view "
            "of it; copy it, or pass what its shape allows."
        )

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    @abc.abstractmethod
    def _keeps_first(self) -> bool:
        """Whether dimension 0 stays what it is: partitions, or rows that an index chooses."""

    @abc.abstractmethod
    def _view(self, shape: Sequence[int], strides: Sequence[int]) -> Self:
        """It, with another shape and other strides."""


def reshaped(shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> Sizes | None:
    """The strides of the same elements, in the same order, as an array of the shape `sizes`; None:
    there are none, or these are not as many elements."""
    if math.prod(shape) != math.prod(sizes):
        return None
    runs: list[tuple[int, int]] = []  # sizes and steps of what lies at equal distances
    for size, stride in zip(shape, strides, strict=True):
        if size != 1 and runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        elif size != 1:
            runs.append((size, stride))
    steps: list[int] = []
    for size in reversed(sizes):
        if size == 1:
            steps.append(1)
            continue
        count, stride = runs.pop()
        if count % size:
            return None
        steps.append(stride)
        if count > size:
            runs.append((count // size, stride * size))
    return tuple(reversed(steps))


def inferred(sizes: Sequence[int], total: int) -> Sizes:
    """The sizes of a shape with so many elements, of which one may be -1."""
    known = math.prod(size for size in sizes if size != -1)
    return tuple(total // known if size == -1 and known else size for size in sizes)


def rearranged(
    shape: Sequence[int], source: Pattern, target: Pattern, fixed: Mapping[str, int]
) -> tuple[Sizes, Sizes, Sizes] | None:
    """The dimensions of a tensor rearranged by patterns with the same names: the shape with a
    dimension for each name of `source`, the permutation to the order of `target`, and the shape of
    `target`. None: they do not fit."""
    sizes: dict[str, int] = {}
    if len(source) != len(shape):
        return None
    for entry, size in zip(source, shape, strict=True):
        names = _names([entry])
        split = inferred([size if len(names) == 1 else fixed.get(n, -1) for n in names], size)
        sizes.update(zip(names, split, strict=True))
        if math.prod(split) != size or any(fixed.get(n, sizes[n]) != sizes[n] for n in names):
            return None
    before, after = _names(source), _names(target)
    if sorted(before) != sorted(after) or len(set(before)) < len(before):
        return None
    return (
        tuple(sizes[name] for name in before),
        tuple(before.index(name) for name in after),
        tuple(math.prod(sizes[name] for name in _names([entry])) for entry in target),
    )


def _names(pattern: Pattern) -> list[str]:
    return [n for entry in pattern for n in ((entry,) if isinstance(entry, str) else entry)]
