"""Tensors of a kernel: views of its buffers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.dtypes import DType, element_type, stored
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.indices import bounds, integer, shown, walk
from neuronjax.nki.refusal import checked, unknown
from neuronjax.nki.tracing import current
from neuronjax.nki.unknown_values import INSTEAD, refuse_truth
from neuronjax.nki.views import Views
from neuronjax.program.affine import Affine, affine
from neuronjax.program.control import RegisterLoad
from neuronjax.program.element_types import ElementType, Integer
from neuronjax.program.operand import Access, Buffer, Dim, Kind, Register, RegisterOffset


@dataclass(frozen=True, repr=False)
class Tensor(Views):
    """A view of a buffer: `shape` and the stride in elements of every dimension.

    On chip, dimension 0 is the partition, whose entry of `strides` counts partitions.
    """

    storage: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    partition: int = 0
    offset: int = 0
    #: What its elements are read as; None: what the buffer holds.
    element_type: ElementType | None = None
    #: A register and what it is multiplied with, in elements: added to the offset.
    dynamic: tuple[Register, int] | None = None
    #: A tile with the place of every row, which are `row_count` of `row_stride` elements.
    index: Tensor | None = None
    row_count: int = 0
    row_stride: int = 0
    #: The pattern that it walks by, which may lead out of the tensor as long as nothing uses it.
    walk: str = ""

    def _with(self, **values: Any) -> Self:
        """This tensor with other values in some fields; faster than ``dataclasses.replace``."""
        view = object.__new__(type(self))
        vars(view).update(vars(self), **values)
        return view

    def __bool__(self) -> bool:
        """Kernels ask whether they were given a tensor, or None: it is true.

        UnsupportedProgramError: it is one element of a tile, whose value must be meant.
        """
        return bool(refuse_truth(self)) if self.storage.on_chip and self.size == 1 else True

    def __getattr__(self, name: str) -> NoReturn:
        """UnknownNameError: it has no such attribute; the text names the nearest, or what to use in
        the place of one of numpy."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise unknown("a tensor", name, dir(self), INSTEAD.get(name))

    def __repr__(self) -> str:
        return f"a tensor {self.dtype.name}{list(self.shape)} in {self.buffer.value}"

    @property
    def dtype(self) -> ElementType:
        """The type of its elements."""
        return self.element_type or self.storage.dtype

    @property
    def buffer(self) -> MemoryRegion:
        """The memory that it lies in."""
        if self.storage.on_chip:
            return MemoryRegion(self.storage.memory.value)
        is_private = self.storage.kind is Kind.SCRATCH
        return MemoryRegion.private_hbm if is_private else MemoryRegion.shared_hbm

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    def __getitem__(self, index: object) -> Tensor:
        """A slice of it. Integers keep dimension 0 of a tile and drop any other, except that a tile
        keeps two dimensions, as instructions need: `tile[:, 3]` has one column; and a tensor in HBM
        keeps one.

        OutOfBoundsError: an index lies outside; UnsupportedProgramError: a step on partitions.
        """
        entries = index if isinstance(index, tuple) else (index,)
        if ... in entries:
            place = entries.index(...)
            rest = (slice(None),) * (len(self.shape) - len(entries) + 1)
            entries = (*entries[:place], *rest, *entries[place + 1 :])
        if len(entries) > len(self.shape):
            raise OutOfBoundsError(
                f"{current().line()}: {len(entries)} indices are too many for shape {self.shape}."
            )
        view, sizes, strides, kept = self, list(self.shape), list(self.strides), []
        partition, offset, on_chip = self.partition, self.offset, self.storage.on_chip
        for axis, entry in enumerate(entries):
            if isinstance(entry, DynamicSlice):
                view = view._at_register(entry.start, axis, strides[axis])
                sizes[axis] = entry.size
            else:
                start, sizes[axis], step = self._slice(axis, entry)
                if axis == 0 and on_chip:
                    partition += start
                else:
                    offset += start * strides[axis]
                    strides[axis] *= step
            if isinstance(entry, slice | DynamicSlice) or (axis == 0 and on_chip):
                kept.append(axis)
        kept.extend(range(len(entries), self.ndim))
        if on_chip and kept == [0] and self.ndim > 1:
            kept.append(self.ndim - 1)
        if not kept and self.ndim:
            kept.append(self.ndim - 1)
        return view._with(
            shape=tuple([sizes[axis] for axis in kept]),
            strides=tuple([strides[axis] for axis in kept]),
            partition=partition,
            offset=offset,
        )

    def _slice(self, axis: int, entry: object) -> tuple[int, int, int]:
        """Start, size and step of a slice, or of one element, of a dimension."""
        size = self.shape[axis]
        start, stop, step = bounds(entry, size)
        if step < 1:
            raise UnsupportedProgramError(
                f"{current().line()}: the step of {shown(entry)} is {step}; pass a positive one."
            )
        if not 0 <= start <= stop <= size:
            raise OutOfBoundsError(
                f"{current().line()}: {shown(entry)} is out of bounds for dimension {axis}, which "
                f"has {size} elements."
            )
        if step != 1 and axis == 0 and self.storage.on_chip:
            raise UnsupportedProgramError(
                f"{current().line()}: a slice of partitions cannot have a step ({step})."
            )
        return start, -(-(stop - start) // step), step

    def _at_register(self, register: Register, axis: int, stride: int) -> Tensor:
        """It, further on by register · stride elements."""
        if self.dynamic is not None or (axis == 0 and self.storage.on_chip):
            raise UnsupportedProgramError(
                f"{current().line()}: ${register.name} addresses dimension {axis} of a tensor of "
                f"shape {self.shape} in {self.buffer.value}; a register can address only one "
                "dimension of a tensor, and never partitions."
            )
        return self._with(dynamic=(register, stride))

    @checked("tensor.ap")
    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Tensor | VirtualRegister | int | None = None,
        vector_offset: Tensor | None = None,
        indirect_dim: int = 0,
        dtype: DType = None,
    ) -> Tensor:
        """Any walk over the tensor that it is a view of: [step, count] of every dimension, in
        elements; it begins at `offset`, by default where the view does.

        On chip the first dimension walks over partitions, and its step is the elements of one
        partition, as is that of `offset`. `scalar_offset`, times the stride of dimension
        `indirect_dim`, is added to the offset; it may be a number. `vector_offset`, a tile of row
        numbers, takes the place of the first dimension's step. `dtype` is what its bits are read
        as; steps and `offset` then count elements of it.

        An instruction raises ``OutOfBoundsError`` if it is given a walk that leaves the tensor.

        UnsupportedProgramError: such a walk is not built.
        """
        if dtype is not None:
            return self.view(dtype).ap(pattern, offset, scalar_offset, vector_offset, indirect_dim)
        steps, counts = walk(pattern)
        start = None if offset is None else integer(offset)
        if scalar_offset is not None and vector_offset is not None:
            raise UnsupportedProgramError(
                f"{current().line()}: tensor.ap takes scalar_offset or vector_offset, but not both."
            )
        if not self._has(indirect_dim):
            raise UnsupportedProgramError(
                f"{current().line()}: indirect_dim={indirect_dim} of a tensor with {self.ndim} "
                f"dimensions; pass a number from 0 to {self.ndim - 1}."
            )
        stride = math.prod(self.shape[indirect_dim + 1 :])
        if self.storage.on_chip:
            view = self._walk_over_partitions(steps, counts, start)
        else:
            begin = self.offset if start is None else start
            view = self._with(shape=counts, strides=steps, offset=begin)
        if not isinstance(scalar_offset, Tensor | VirtualRegister | None):
            view, scalar_offset = view._further(integer(scalar_offset), indirect_dim, stride), None
        if vector_offset is not None:
            view = view._with(
                index=vector_offset,
                strides=(0, *steps[1:]),
                row_count=self.shape[indirect_dim],
                row_stride=stride,
            )
        elif scalar_offset is not None:
            register = _register(scalar_offset)
            view = view._at_register(register, indirect_dim, stride)._with(shape=counts)
        else:
            view = view._with(walk=f"the pattern {pattern} at offset {start or 0}")
        return view

    def _further(self, number: int, dim: int, stride: int) -> Tensor:
        """It, further on by so many times a dimension's stride."""
        if dim == 0 and self.storage.on_chip:
            return self._with(partition=self.partition + number)
        return self._with(offset=self.offset + number * stride)

    def _walk_over_partitions(
        self, steps: tuple[int, ...], counts: tuple[int, ...], start: int | None
    ) -> Tensor:
        row, place = self.storage.elements, (0, 0)
        if counts[0] > 1 and steps[0] != row:
            line = current().line()
            text = (
                f"the pattern's first step is {steps[0]} elements, but partitions have {row}; "
                f"engines take consecutive partitions, a step of {row}"
            )
            own = math.prod(self.shape[1:])
            if steps[0] != own:
                raise UnsupportedProgramError(f"{line}: {text}.")
            # Kernels of nki-library have patterns within a view: steps and offset are its own.
            current().advice[line] = f"{text}. It is taken as one within the view {self.shape}"
            row, place = own, (self.partition, self.offset)
        partition, offset = self.partition, self.offset
        if start is not None:
            partition, offset = place[0] + start // row, place[1] + start % row
        return self._with(shape=counts, strides=(1, *steps[1:]), partition=partition, offset=offset)

    def _check_inside(self, access: Access) -> None:
        bounds, places = access.bounds({}), access.partition.base + access.partitions
        is_inside = places <= self.storage.partitions and self.partition >= 0
        if (
            bounds is None
            or not is_inside
            or not 0 <= bounds.low <= bounds.high < (self.storage.elements)
        ):
            raise OutOfBoundsError(
                f"{current().line()}: {self.walk} is out of bounds for a tensor of shape "
                f"{self.storage.shape}."
            )

    @checked("tensor.view")
    def view(self, dtype: DType) -> Tensor:
        """The tensor's bits as elements of another type; if that has another width, the last
        dimension has more or fewer of them.

        Raises:
          UnsupportedProgramError: they do not fill whole elements, or lie apart.
        """
        kind = element_type(dtype)
        if kind.storage_bits != self.dtype.storage_bits:
            return self._of_width(kind)
        return self._with(element_type=None if kind == self.storage.dtype else kind)

    reinterpret_cast = view

    def _of_width(self, kind: ElementType) -> Tensor:
        old, new = self.dtype.storage_bits, kind.storage_bits
        first = 1 if self.storage.on_chip else 0
        lies = (self.shape[-1], *self.strides[first:-1], self.offset)
        is_possible = (
            min(old, new) >= 8
            and self.ndim > first
            and (self.strides[-1] == 1 or self.shape[-1] == 1)
            and self.storage.slot_bytes % (new // 8) == 0
            and all(number * old % new == 0 for number in lies)
            and self.dynamic is None
            and self.index is None
        )
        if not is_possible:
            raise UnsupportedProgramError(
                f"{current().line()}: a tensor {self.dtype.name}{list(self.shape)} with strides "
                f"{list(self.strides)} in {self.buffer.value} cannot be viewed as {kind.name}, "
                "which has another width; view a tensor whose last dimension is contiguous and "
                "fills whole elements."
            )
        return Tensor(
            storage=current().alias(self.storage, stored(kind)),
            element_type=kind,
            shape=(*self.shape[:-1], self.shape[-1] * old // new),
            strides=(
                *self.strides[:first],
                *(stride * old // new for stride in self.strides[first:-1]),
                1,
            ),
            partition=self.partition,
            offset=self.offset * old // new,
        )

    def access(self) -> Access:
        """It, as an operand of an instruction.

        Raises:
          UnsupportedProgramError: rows are addressed by an index, which copies and transposes of
            DMA take only.
          OutOfBoundsError: its pattern leads out of the tensor.
        """
        if self.index is not None:
            raise UnsupportedProgramError(
                f"{current().line()}: only dma_copy (src or dst) and dma_transpose (src) take a "
                "tensor with vector_offset."
            )
        if not self.size:
            raise UnsupportedProgramError(
                f"{current().line()}: an operand of shape {self.shape} has no elements, which no "
                "instruction takes; leave the instruction out."
            )
        access = self._access(self.strides, self.shape)
        if self.walk and self.dynamic is None:
            self._check_inside(access)
        return access

    def table(self) -> Access:
        """The access to all rows of a tensor with an index, which chooses among them."""
        strides, shape = (self.row_stride, *self.strides[1:]), (self.row_count, *self.shape[1:])
        return self._access(strides, shape)

    def _access(self, strides: Sequence[int], shape: Sequence[int]) -> Access:
        walk = _dims(tuple(strides), tuple(shape))
        on_chip = self.storage.on_chip
        offset: Affine | RegisterOffset = affine(self.offset)
        dtype = stored(self.dtype)
        if self.dynamic is not None:
            register, factor = self.dynamic
            offset = RegisterOffset(register, factor, affine(self.offset))
        return Access(
            buffer=self.storage,
            partition=affine(self.partition),
            partitions=shape[0] if on_chip else 1,
            offset=offset,
            dims=walk[1:] if on_chip else walk,
            dtype=None if dtype == self.storage.dtype else dtype,
        )

    @checked("tensor.slice")
    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """The part from `start` to before `end` of a dimension, each `step`-th."""
        self._check(self._has(dim), f"slice({dim}, {start}, {end}, {step})")
        return self[(*[slice(None)] * dim, slice(start, end, step))]

    @checked("tensor.select")
    def select(self, dim: int, index: int | Tensor | VirtualRegister) -> Tensor:
        """The element at an index of a dimension, which is dropped; a tensor of one element or a
        register says which when the program runs."""
        self._check(self._has(dim), f"select({dim}, {index})")
        before = [slice(None)] * dim
        if not isinstance(index, Tensor | VirtualRegister):
            return self[(*before, index)]
        element = self[(*before, DynamicSlice(_register(index), 1))]
        return element if dim == 0 and self.ndim == 1 else element.squeeze_dim(dim)

    @checked("tensor.vector_select")
    def vector_select(self, dim: int, vector_offset: Tensor) -> Tensor:
        """The rows in HBM that a tile [rows, 1] names, each on a partition of its own."""
        is_table = dim == 0 and not self.storage.on_chip and not self.is_indirect()
        self._check(is_table, f"vector_select({dim}, {vector_offset})")
        return self._with(
            shape=(vector_offset.shape[0], *self.shape[1:]),
            strides=(0, *self.strides[1:]),
            index=vector_offset,
            row_count=self.shape[0],
            row_stride=self.strides[0],
        )

    @checked("tensor.indirect")
    def indirect(self, index: Tensor, num_elem: int | None = None) -> Tensor:
        """UnsupportedProgramError: operands whose columns a tile names are not built."""
        raise UnsupportedProgramError(
            f"{current().line()}: tensor.indirect is not built: no document says how long "
            "instructions with such operands take; use nisa.nc_n_gather or nisa.local_gather, or "
            "nisa.dma_copy with vector_offset."
        )

    def is_contiguous(self) -> bool:
        """Whether its elements, those of one partition on chip, lie side by side."""
        first = 1 if self.storage.on_chip else 0
        sizes, strides = self.shape[first:], self.strides[first:]
        return all(
            size == 1 or stride == math.prod(sizes[axis + 1 :])
            for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        )

    def get_pattern(self) -> list[list[int]]:
        """[step, count] of every dimension, as `ap` takes them."""
        steps = list(self.strides)
        if self.storage.on_chip:
            steps[0] *= self.storage.elements
        return [list(pair) for pair in zip(steps, self.shape, strict=True)]

    @property
    def _keeps_first(self) -> bool:
        """Whether dimension 0 stays what it is: partitions, or rows that an index chooses."""
        return self.storage.on_chip or self.index is not None

    def is_indirect(self) -> bool:
        """Whether a register or a tile says where it lies."""
        return self.dynamic is not None or self.index is not None

    @property
    def name(self) -> str:
        """The name by which messages call the tensor."""
        return self.storage.name

    def _view(self, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        return self._with(shape=tuple(shape), strides=tuple(strides))


@functools.lru_cache(maxsize=1 << 12, typed=True)
def _dims(strides: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Dim, ...]:
    return tuple(Dim(stride, size) for stride, size in zip(strides, sizes, strict=True))


@dataclass(frozen=True)
class DynamicSlice:
    """The `size` elements from where a register says."""

    start: Register
    size: int


def _register(offset: Tensor | VirtualRegister) -> Register:
    """The register itself, or a new one with the one element of a tensor."""
    if isinstance(offset, VirtualRegister):
        return offset.register
    trace = current()
    check_integers(offset, "scalar_offset")
    register = trace.register()
    trace.add(RegisterLoad(dst=register, src=offset.access()))
    return register


def check_integers(element: Tensor, what: str) -> None:
    """UnsupportedProgramError: a tensor that a register is loaded from has no integers."""
    if not isinstance(element.dtype, Integer):
        raise UnsupportedProgramError(
            f"{current().line()}: {what} is {element!r}, but registers have 32-bit integers; "
            "convert it with nl.copy(tensor, nl.int32)."
        )


def whole(buffer: Buffer, dtype: ElementType | None = None) -> Tensor:
    """All of a buffer, as elements of a type that is stored as the buffer's."""
    first = 1 if buffer.on_chip else 0
    shape = buffer.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(first, len(shape))]
    return Tensor(buffer, shape, (*([1] * first), *strides), element_type=dtype)
