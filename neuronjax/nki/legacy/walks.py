"""Tensors that index expressions of NKI 0.x walk over, and what masks leave of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from neuronjax.errors import KernelError, OutOfBoundsError, UnsupportedProgramError, quoted
from neuronjax.nki.indices import bounds
from neuronjax.nki.legacy.index import Index, Mask, broadcast, refuse_registers
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current
from neuronjax.program.operand import Access

Region = tuple[tuple[int, int], ...]
"""Of each dimension, where the elements begin in the whole tile, and how many that has."""


@dataclass(frozen=True, repr=False, eq=False)
class Walk(Tensor):
    """A tensor of a kernel of NKI 0.x, or what an instruction returns: a view of a buffer.

    A masked instruction returns the part that it has written: `region` says of what.
    """

    region: Region = ()
    #: The size of every axis that indices walk over, and these, which must lie within on use.
    walked: tuple[tuple[int, Index], ...] = ()
    #: The number of its declaration.
    declaration: int = -1

    def __getitem__(self, index: object) -> Self:
        entries = index if isinstance(index, tuple) else (index,)
        refuse_registers(*entries)
        if ... in [entry for entry in entries if entry is Ellipsis]:
            place = [entry is Ellipsis for entry in entries].index(True)
            rest = (slice(None),) * (self.ndim - len(entries) + 1)
            entries = (*entries[:place], *rest, *entries[place + 1 :])
        if self.walked:
            self.check_inside()
        if any(isinstance(entry, Index) for entry in entries):
            return self._walk(entries)
        if self.region:
            return self._part(entries)
        return self.of(plain_view(self)[tuple(entries)])

    @classmethod
    def of(cls, tensor: Tensor, region: Region = ()) -> Self:
        """A tensor as one of NKI 0.x."""
        if isinstance(tensor, cls):
            return tensor
        made = object.__new__(cls)
        vars(made).update(vars(tensor), region=region, walked=(), declaration=-1)
        return made

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The walk's shape, with what a mask has left out."""
        return tuple(full for _, full in self.region) or self.shape

    def _part(self, entries: Sequence[object]) -> Self:
        """Slices of what a mask has left."""
        slices: list[slice] = []
        region = list(self.region)
        for axis, entry in enumerate(entries):
            low, full = self.region[axis]
            start, stop, step = bounds(entry, full)
            first, last = max(start, low), min(stop, low + self.shape[axis])
            if step != 1 or first >= last:
                raise KernelError(
                    f"{current().line()}: [{quoted(entry)}] of a tile of which a mask has left "
                    f"{low} to {low + self.shape[axis]} of dimension {axis}; mask this as well."
                )
            slices.append(slice(first - low, last - low))
            region[axis] = (first - start, stop - start)
        return self.of(plain_view(self)[tuple(slices)], tuple(region))

    def _walk(self, entries: Sequence[object]) -> Self:
        """What index expressions walk over."""
        if len(entries) != self.ndim or any(isinstance(entry, slice) for entry in entries):
            raise UnsupportedProgramError(
                f"{current().line()}: {len(entries)} indices of {self!r}; where one is an "
                "expression of nl.arange or nl.mgrid, give one for each dimension, and no slices."
            )
        starts = [low for low, _ in self.region] or [0] * self.ndim
        given = [
            entry if isinstance(entry, Index) else Index(_whole(entry), (), ()) for entry in entries
        ]
        walks = [index - low for index, low in zip(broadcast(given), starts, strict=True)]
        shape = walks[0].shape
        first = 1 if self.storage.on_chip else 0
        if first and (any(walks[0].factors[1:]) or walks[0].factors[0] not in (0, 1)):
            raise UnsupportedProgramError(
                f"{current().line()}: the first index of {self!r} must be its partitions, one "
                "after the other: an nl.arange with [:, None]."
            )
        strides = [
            sum(
                walk.factors[dim] * self.strides[axis]
                for axis, walk in enumerate(walks)
                if axis >= first
            )
            for dim in range(len(shape))
        ]
        offset = sum(walks[axis].base * self.strides[axis] for axis in range(first, self.ndim))
        if first:
            strides[0] = 1
            if walks[0].factors[0] == 0 and shape[0] > 1:
                raise UnsupportedProgramError(
                    f"{current().line()}: one partition of {self!r} for {shape[0]}; use "
                    "nl.broadcast_to."
                )
        made = self._with(
            shape=shape,
            strides=tuple(strides),
            partition=self.partition + (walks[0].base if first else 0),
            offset=self.offset + offset,
            region=(),
            walked=tuple(zip(self.shape, walks, strict=True)),
        )
        return made._two_dimensional() if self.region == () else made._of_region(walks, self)

    def _of_region(self, walks: Sequence[Index], whole: Walk) -> Self:
        """The part of it that lies in what a mask has left."""
        ranges = [(0, size) for size in self.shape]
        for axis, walk in enumerate(walks):
            mask = Mask((walk, whole.shape[axis] - 1 - walk))
            ranges = [
                (max(a, c), min(b, d))
                for (a, b), (c, d) in zip(ranges, mask.ranges(self.shape), strict=True)
            ]
        return self.narrowed(ranges)

    def _two_dimensional(self) -> Self:
        """A tile has two dimensions at least, as instructions need."""
        if not self.storage.on_chip or self.ndim != 1:
            return self
        walked = tuple(
            (size, Index(walk.base, (*walk.factors, 0), (*walk.shape, 1)))
            for size, walk in self.walked
        )
        return self._with(shape=(*self.shape, 1), strides=(*self.strides, 1), walked=walked)

    def narrowed(self, ranges: Sequence[tuple[int, int]]) -> Self:
        """The walk over the places within a range of each dimension."""
        if all(entry == (0, size) for entry, size in zip(ranges, self.shape, strict=True)):
            return self
        partition, offset, walked = self.partition, self.offset, list(self.walked)
        for dim, (low, high) in enumerate(ranges):
            if dim == 0 and self.storage.on_chip:
                partition += low
            else:
                offset += low * self.strides[dim]
            walked = [(size, walk.within(dim, low, high)) for size, walk in walked]
        starts = self.region or tuple((0, size) for size in self.shape)
        return self._with(
            shape=tuple(high - low for low, high in ranges),
            partition=partition,
            offset=offset,
            walked=tuple(walked),
            region=tuple(
                (start + low, full) for (low, _), (start, full) in zip(ranges, starts, strict=True)
            ),
        )

    def check_inside(self) -> None:
        """OutOfBoundsError: its indices lead out of the tensor."""
        for axis, (size, walk) in enumerate(self.walked):
            low, high = walk.bounds
            if low < 0 or high >= size:
                raise OutOfBoundsError(
                    f"{current().line()}: indices from {low} to {high} are out of bounds for "
                    f"dimension {axis}, which has {size} elements; mask what lies outside."
                )

    def _view(self, shape: Sequence[int], strides: Sequence[int]) -> Self:
        self.check_inside()
        return self._with(shape=tuple(shape), strides=tuple(strides), walked=(), region=())

    def access(self) -> Access:
        """UnsupportedProgramError: an instruction of the present dialect gets it."""
        raise UnsupportedProgramError(
            f"{current().line()}: a tensor of a kernel of NKI 0.x (neuronxcc.nki) is passed to a "
            "function of the present nki. A kernel is written in one of the dialects: import "
            "nki.language and nki.isa from neuronxcc, or move the kernel to nki."
        )


def _whole(entry: object) -> int:
    if not hasattr(entry, "__index__"):
        raise UnsupportedProgramError(
            f"{current().line()}: {quoted(entry)} is no index; pass integers, loop variables and "
            "expressions of nl.arange and nl.mgrid."
        )
    return int(entry.__index__())


_FIELDS = tuple(entry.name for entry in dataclasses.fields(Tensor))


def plain_view(tensor: Tensor) -> Tensor:
    """It, as a tensor of the present dialect, whose functions take it."""
    made = object.__new__(Tensor)
    vars(made).update({name: getattr(tensor, name) for name in _FIELDS})
    return made
