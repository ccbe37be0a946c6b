"""Index expressions of NKI 0.x: `nl.arange`, `nl.mgrid`, sums of them, and masks about them.

Loop variables are integers while a kernel is traced, so an expression is a number plus, for every
dimension of its shape, a factor times the place in that dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from neuronjax.errors import UnsupportedProgramError, quoted
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.refusal import checked
from neuronjax.nki.tracing import current

Sizes = tuple[int, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Index:
    """base + Σ factor · place: an array of indices of the shape `shape`, as numpy would make it."""

    base: int
    factors: tuple[int, ...]
    shape: Sizes

    def __repr__(self) -> str:
        return f"an index of shape {self.shape}"

    def __getitem__(self, entries: object) -> Index:
        """The index with new dimensions of size 1, as `[:, None]` makes them; or a part of it."""
        factors: list[int] = []
        sizes: list[int] = []
        base, axis = self.base, 0
        for entry in entries if isinstance(entries, tuple) else (entries,):
            if entry is None:
                factors.append(0)
                sizes.append(1)
                continue
            if not isinstance(entry, slice) or axis == len(self.shape):
                raise self._refused(f"[{quoted(entry)}]", "[:, None] and [None, :]")
            start, stop, step = entry.indices(self.shape[axis])
            base += self.factors[axis] * start
            factors.append(self.factors[axis] * step)
            sizes.append(len(range(start, stop, step)))
            axis += 1
        factors.extend(self.factors[axis:])
        sizes.extend(self.shape[axis:])
        return Index(base, tuple(factors), tuple(sizes))

    def __add__(self, other: object) -> Index:
        if isinstance(other, Index):
            first, second = broadcast((self, other))
            factors = tuple(a + b for a, b in zip(first.factors, second.factors, strict=True))
            return Index(first.base + second.base, factors, first.shape)
        return replace(self, base=self.base + self._integer(other, "+"))

    def __mul__(self, other: object) -> Index:
        by = self._integer(other, "*")
        return Index(self.base * by, tuple(by * factor for factor in self.factors), self.shape)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: object) -> Index:
        return self + (-other if isinstance(other, Index) else -self._integer(other, "-"))

    def __rsub__(self, other: object) -> Index:
        return -self + other

    def __ge__(self, other: object) -> Mask:
        return Mask((self - other,))

    def __gt__(self, other: object) -> Mask:
        return Mask((self - other - 1,))

    def __le__(self, other: object) -> Mask:
        return Mask((-self + other,))

    def __lt__(self, other: object) -> Mask:
        return Mask((-self + other - 1,))

    def __eq__(self, other: object) -> Mask:  # type: ignore[override]
        return Mask((self - other, -self + other))

    def __ne__(self, other: object) -> Mask:  # type: ignore[override]
        raise UnsupportedProgramError(
            f"{current().line()}: a mask of != holds for no range of places; write what lies "
            "before and what lies behind apart, with < and >."
        )

    __hash__ = object.__hash__

    def at(self, values: Iterable[int]) -> int:
        """The value of the index at a place."""
        return self.base + sum(f * v for f, v in zip(self.factors, values, strict=True))

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value of the index."""
        reach = [f * (size - 1) for f, size in zip(self.factors, self.shape, strict=True)]
        return (
            self.base + sum(min(0, end) for end in reach),
            self.base + sum(max(0, end) for end in reach),
        )

    def within(self, dim: int, low: int, high: int) -> Index:
        """The index at places from `low` to before `high` of a dimension."""
        if self.shape[dim] == 1:
            return self
        sizes = (*self.shape[:dim], high - low, *self.shape[dim + 1 :])
        return Index(self.base + self.factors[dim] * low, self.factors, sizes)

    def _integer(self, value: object, operator: str) -> int:
        if not hasattr(value, "__index__"):
            raise self._refused(
                f"{operator} {quoted(value)}", "integers, loop variables and other indices"
            )
        return int(value.__index__())

    def _refused(self, what: str, instead: str) -> UnsupportedProgramError:
        return UnsupportedProgramError(
            f"{current().line()}: {self!r} takes no {what}: indices are affine; use {instead}."
        )

    def _not_affine(self, other: object) -> NoReturn:
        raise self._refused(
            f"products, quotients or remainders by {quoted(other)}",
            "sums of loop variables and nl.arange times integers",
        )

    __floordiv__ = __mod__ = __truediv__ = __pow__ = _not_affine
    __rfloordiv__ = __rmod__ = __rtruediv__ = __rpow__ = _not_affine


@dataclass(frozen=True, eq=False)
class Mask:
    """A predicate about places: all of its expressions are at least 0."""

    conditions: tuple[Index, ...]

    def __and__(self, other: object) -> Mask:
        """Both; truth values of Python are predicates that hold everywhere or nowhere."""
        return Mask((*self.conditions, *as_mask(other).conditions))

    __rand__ = __and__

    def __bool__(self) -> bool:
        raise UnsupportedProgramError(
            f"{current().line()}: a mask is neither true nor false; combine masks with &, and pass "
            "them as mask=."
        )

    def ranges(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the range of places in which it holds, for each dimension of that many places.

        UnsupportedProgramError: it is no range in each of them.
        """
        limits = [(0, size) for size in sizes]
        for condition in self.conditions:
            if condition.shape and len(condition.shape) != len(sizes):
                raise UnsupportedProgramError(
                    f"{current().line()}: the mask has {len(condition.shape)} dimensions, and what "
                    f"it masks has {len(sizes)}; write it with the indices of the tile."
                )
            moving = [
                dim
                for dim, factor in enumerate(condition.factors)
                if factor and condition.shape[dim] > 1
            ]
            low, high = condition.bounds
            if low >= 0:
                continue
            if high < 0:
                return [(0, 0) for _ in sizes]
            if len(moving) > 1:
                raise UnsupportedProgramError(
                    f"{current().line()}: the mask holds for no range in each dimension, but for a "
                    "shape that is cut off aslant; compute all, and use nisa.affine_select."
                )
            dim = moving[0]
            factor, base = condition.factors[dim], condition.base
            start, stop = limits[dim]
            if factor > 0:
                start = max(start, math.ceil(-base / factor))
            else:
                stop = min(stop, base // -factor + 1)
            limits[dim] = (start, stop)
        return [(low, max(low, high)) for low, high in limits]


Predicate: TypeAlias = Mask | bool | None
"""What a kernel passes as `mask`; None holds everywhere."""


def as_mask(value: object) -> Mask:
    """What a kernel passes as `mask`; ``UnsupportedProgramError`` for what is none."""
    if isinstance(value, Mask):
        return value
    if value is None or value is True:
        return Mask(())
    if value is False:
        return Mask((Index(-1, (), ()),))
    raise UnsupportedProgramError(
        f"{current().line()}: mask={quoted(value)} is no affine predicate; compare indices of "
        "nl.arange, nl.mgrid and loop variables, as in i * 128 + nl.arange(128)[:, None] < rows."
    )


@checked("nki.language.arange")
def arange(start: int, stop: int | None = None, step: int = 1) -> Index:
    """Indices as numpy's arange has them."""
    places = range(start) if stop is None else range(start, stop, step)
    return Index(places.start, (places.step,), (len(places),))


class Mgrid:
    """`nl.mgrid[0:128, 0:512]`: an index for each dimension, also by the names p, x, y, z and w."""

    def __getitem__(self, entries: slice | tuple[slice, ...]) -> Grid:
        slices = entries if isinstance(entries, tuple) else (entries,)
        made = []
        for dim, entry in enumerate(slices):
            line = arange(entry.start or 0, entry.stop, entry.step or 1)
            shape = [1] * len(slices)
            shape[dim] = line.shape[0]
            factors = [0] * len(slices)
            factors[dim] = line.factors[0]
            made.append(Index(line.base, tuple(factors), tuple(shape)))
        return Grid(made)


class Grid(tuple[Index, ...]):
    """The indices of `nl.mgrid`."""

    def __getattr__(self, name: str) -> Index:
        names = ("p", "x", "y", "z", "w")
        if name not in names[: len(self)]:
            raise AttributeError(name)
        return self[names.index(name)]


def broadcast(indices: Sequence[Index]) -> list[Index]:
    """Indices in their common shape. ``UnsupportedProgramError``: they have none."""
    rank = max((len(index.shape) for index in indices), default=0)
    padded = [
        Index(
            index.base,
            (*[0] * (rank - len(index.shape)), *index.factors),
            (*[1] * (rank - len(index.shape)), *index.shape),
        )
        for index in indices
    ]
    shape = tuple(max(sizes) for sizes in zip(*(index.shape for index in padded), strict=True))
    for index in padded:
        if any(size not in (1, most) for size, most in zip(index.shape, shape, strict=True)):
            raise UnsupportedProgramError(
                f"{current().line()}: indices of the shapes {[i.shape for i in indices]} have no "
                "common shape; give each nl.arange a dimension of its own with [:, None]."
            )
    return [
        Index(
            index.base,
            tuple(
                0 if size == 1 else f for f, size in zip(index.factors, index.shape, strict=True)
            ),
            shape,
        )
        for index in padded
    ]


def refuse_registers(*indices: object) -> None:
    """UnsupportedProgramError: one of the indices, or of where slices begin, is a register."""
    if any(isinstance(index, VirtualRegister) for index in indices):
        raise UnsupportedProgramError(
            f"{current().line()}: a register is no index of a block or a slice in NKI 0.x here, "
            "where both are known when the kernel is traced; use a loop variable, or nl.ds of the "
            "present dialect (import nki.language)."
        )
