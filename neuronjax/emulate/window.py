"""An access to memory, compiled: a strided view of bytes for every state of the loops.

The views are numpy arrays: elements of a dtype at byte strides over the array of a storage. Only
the byte offset depends on loop variables, as an affine function that is mostly constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.emulate.frame import Frame, Number, Values
from neuronjax.emulate.memory import Area, Location
from neuronjax.errors import MemoryAccessError
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access

Array = np.ndarray
View = Callable[[Values], Array]


class Watcher(Protocol):
    """Observes every access to memory, before it.

    `where` selects elements by a boolean mask over the leading dimensions of the window's shape;
    None selects all of them.
    """

    def reads(self, window: Window, values: Values, where: Array | None) -> None: ...

    def writes(self, window: Window, values: Values, where: Array | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Form:
    """What all windows of an access have in common, on all ranks.

    `sizes` and `strides` are of the free dimensions, strides in bytes; adjacent ones are joined
    where strides allow it and the window `merges`. It `stays_inside` if it is within the buffer in
    every state of the loops.
    """

    itemsize: int
    dtype: np.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    #: The first and the last byte that it touches in a row, from its first element.
    reach: tuple[int, int]
    is_fixed: bool
    stays_inside: bool

    @property
    def is_dense(self) -> bool:
        """Whether it touches all bytes of a row within its reach."""
        covered = self.itemsize
        for stride, size in sorted(zip(map(abs, self.strides), self.sizes, strict=True)):
            if stride > covered:
                return False
            covered += stride * (size - 1)
        return True

    @classmethod
    def of(cls, access: Access, limits: Mapping[str, int], *, merges: bool = True) -> Form:
        """The form of an access in loops of at most so many trips."""
        itemsize = bytes_of(access.element_type)
        sizes, strides = _merged(access) if merges else _listed(access)
        variables, reach = access.variables, access.reach
        return cls(
            itemsize,
            numpy_dtype(access.element_type),
            sizes,
            tuple(stride * itemsize for stride in strides),
            (reach.low * itemsize, (reach.high + 1) * itemsize - 1),
            not variables and not access.registers,
            not access.registers and variables <= limits.keys() and _is_inside(access, limits),
        )


def _is_inside(access: Access, limits: Mapping[str, int]) -> bool:
    """Whether an access stays in the buffer in every state of the loops."""
    partitions, elements = access.partition.interval(limits), access.bounds(limits)
    return (
        elements is not None
        and partitions.low >= 0
        and partitions.high + access.partitions <= access.buffer.partitions
        and elements.low >= 0
        and elements.high < access.buffer.elements
    )


@dataclass
class Forms:
    """The forms of a program's accesses, each determined once for all ranks and calls."""

    _known: dict[tuple[int, bool, tuple[tuple[str, int], ...]], Form] = field(default_factory=dict)

    def of(self, access: Access, limits: Mapping[str, int], *, merges: bool) -> Form:
        """The form of an access, which must live as long as this does."""
        key = (id(access), merges, tuple(limits.items()))
        form = self._known.get(key)
        if form is None:
            form = self._known[key] = Form.of(access, limits, merges=merges)
        return form


Span = tuple[int, tuple[tuple[int, ...], tuple[int, ...], int]]
"""The bytes of a window in its storage: the first one; shape, strides and bytes of elements."""


class Window:
    """An access at a location.

    Attributes:
      shape: [partitions, *sizes of the free dimensions] of its form.
      flat: [partitions, free elements].
    """

    def __init__(
        self,
        instruction: Instruction,
        access: Access,
        location: Location,
        frame: Frame,
        path: str,
        form: Form,
    ) -> None:
        self._instruction = instruction
        self.access = access
        self.storage = location.storage
        self.path = path
        self.form = form
        self.itemsize, self.dtype = form.itemsize, form.dtype
        self.shape = (access.partitions, *form.sizes)
        self.flat = (access.partitions, math.prod(form.sizes))
        self.strides = (location.storage.width, *form.strides)
        self._location = location
        self._extent = self.shape, self.strides, self.itemsize
        #: Whether its address depends on nothing.
        self.is_fixed = form.is_fixed
        self._stays_inside = form.stays_inside
        self.start = self._start(frame)
        self.view = self._view()

    @property
    def field(self) -> str:
        """The name of the instruction's field that holds the operand."""
        uses = self._instruction.uses()
        return next((use.field for use in uses if use.operand is self.access), "an operand")

    @property
    def owner(self) -> int:
        """The number of the buffer; aliases share it."""
        return self._location.owner

    def span(self, values: Values) -> Span:
        """The bytes that it touches."""
        return self.start(values), self._extent

    @property
    def area(self) -> Area:
        """The rows and bytes of the storage in which the window's buffer lies."""
        return self._location.area(self.access.buffer)

    def row(self, values: Values) -> int:
        """The first partition of the memory that it touches."""
        return self.start(values) // self.storage.width

    def _view(self) -> View:
        shape, dtype, strides = self.shape, self.dtype, self.strides
        buffer, start = self.storage.flat.data, self.start
        if not self.is_fixed or not self._stays_inside:
            return lambda values: np.ndarray(shape, dtype, buffer, start(values), strides)
        fixed = np.ndarray(shape, dtype, buffer, start([]), strides)
        return lambda _: fixed

    def _start(self, frame: Frame) -> Number:
        """First byte in the storage."""
        access, location = self.access, self._location
        width, stride = location.storage.width, access.buffer.stride
        origin = location.row * width + location.address
        if isinstance(access.offset, Affine) and not access.slot.terms:
            slot = access.slot.base % access.buffer.slots
            parts = ((access.partition, width), (access.offset, self.itemsize))
            unchecked = frame.total(parts, origin + slot * stride)
        else:
            unchecked = self._general_start(frame, origin)
        return unchecked if self._stays_inside else self._checked(unchecked, frame)

    def _general_start(self, frame: Frame, origin: int) -> Number:
        access, itemsize, stride = self.access, self.itemsize, self.access.buffer.stride
        partition = frame.total(((access.partition, self.storage.width),), 0)
        offset, slot, slots = (
            frame.offset(access.offset),
            frame.number(access.slot),
            access.buffer.slots,
        )

        def start(values: Values) -> int:
            inner = offset(values) * itemsize + slot(values) % slots * stride
            return origin + partition(values) + inner

        return start

    def _checked(self, start: Number, frame: Frame) -> Number:
        access, reach = self.access, self.access.reach
        partition, offset = frame.number(access.partition), frame.offset(access.offset)
        last_partition = access.buffer.partitions - access.partitions
        least, most = -reach.low, access.buffer.elements - 1 - reach.high

        def checked(values: Values) -> int:
            first, element = partition(values), offset(values)
            if not (0 <= first <= last_partition and least <= element <= most):
                self._fail(first, element, frame.valuation(values))
            return start(values)

        return checked

    def _fail(self, partition: int, element: int, valuation: dict[str, int]) -> None:
        access, reach, buffer = self.access, self.access.reach, self.access.buffer
        raise MemoryAccessError(
            f"{self.path}: {self.field} reaches partitions {partition} to"
            f" {partition + access.partitions - 1}, elements {element + reach.low} to"
            f" {element + reach.high} of {buffer.name}{f' at {valuation}' if valuation else ''},"
            f" which has {buffer.partitions} partitions of {buffer.elements} elements. Peel the"
            " remainder off the loop, or limit the register."
        )

    def words(self, marks: Array, values: Values) -> Array:
        """The window over an array of small integers parallel to the bytes of the storage.

        Marks of an element are joined to one word of up to 64 bits: [*shape], or
        [*shape, words of an element].
        """
        return self.words_from(marks, self.start(values))

    def words_from(self, marks: Array, first: int) -> Array:
        """The window as `words` gives it, starting at byte `first`."""
        scale = marks.itemsize
        size = self.itemsize * scale
        word = min(size, 8)
        start, strides = first * scale, tuple(scale * step for step in self.strides)
        dtype = np.dtype(f"u{word}")
        if size == word:
            return np.ndarray(self.shape, dtype, marks.data, start, strides)
        shape = (*self.shape, size // word)
        return np.ndarray(shape, dtype, marks.data, start, (*strides, word))

    def granules(self, marks: Array, values: Values) -> Array:
        """The window over an array with one item per granule of the storage.

        [*shape, granules of an element], without the last dimension if that is 1.
        """
        granule, size = self.storage.granule, marks.itemsize
        strides = tuple(stride // granule * size for stride in self.strides)
        count, start = self.itemsize // granule, self.start(values) // granule * size
        if count == 1:
            return np.ndarray(self.shape, marks.dtype, marks.data, start, strides)
        shape, inner = (*self.shape, count), (*strides, size)
        return np.ndarray(shape, marks.dtype, marks.data, start, inner)


def _listed(access: Access) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of the free dimensions, unmerged."""
    return access.sizes, tuple(dim.stride for dim in access.dims)


def _merged(access: Access) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of the free dimensions, with adjacent ones joined where strides allow."""
    dims = [(dim.size, dim.stride) for dim in access.dims if dim.size > 1]
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    if not merged:
        merged = [(math.prod(access.sizes), 1)]
    return tuple(size for size, _ in merged), tuple(stride for _, stride in merged)
