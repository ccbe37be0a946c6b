"""What instructions work on: accesses to buffers, constants, and scalar registers.

An `Access` is the tensorised access pattern of an engine: some partitions, and in each of them the
same walk over up to four free dimensions. Strides, sizes and offsets count elements.

Sources: Neuron docs, "Trainium/Inferentia2 architecture guide", accessing SBUF and PSUM; "NKI
access patterns" (`.ap`); NKI ISA `register_alloc`.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronjax.errors import MalformedProgramError
from neuronjax.program.affine import ZERO, Affine, Interval
from neuronjax.program.element_types import ElementType, bytes_of

_NAME = re.compile(r"[A-Za-z_]\w*")


def check_name(name: str) -> None:
    """Raises ``MalformedProgramError`` unless `name` is an identifier, as the text form needs."""
    if not _NAME.fullmatch(name):
        raise MalformedProgramError(
            f"{name!r} is not a name: use letters, digits and underscores, no digit first."
        )


class Memory(enum.Enum):
    """The memories that a NeuronCore addresses."""

    HBM = "hbm"
    SBUF = "sbuf"
    PSUM = "psum"


class Kind(enum.Enum):
    """Who gives a buffer its value, and who wants it."""

    ARGUMENT = "argument"
    RESULT = "result"
    CONSTANT = "constant"
    SCRATCH = "scratch"


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """A tensor in one memory.

    On chip, dimension 0 of `shape` lies on partitions and the others lie dense, row-major, in each
    of them; in HBM the whole tensor is dense and row-major. A buffer with several `slots` is as
    many tensors; an access names the one it means.
    """

    name: str
    memory: Memory
    dtype: ElementType
    shape: tuple[int, ...]
    kind: Kind = Kind.SCRATCH
    #: First partition of an on-chip buffer.
    partition: int = 0
    #: Byte address of slot 0: in HBM, or in each partition. None: not allocated yet.
    address: int | None = None
    slots: int = 1
    #: Bytes from one slot to the next, in each partition or in HBM; None: they lie back to back.
    slot_stride: int | None = None
    #: The bytes of a constant, little-endian.
    data: bytes | None = field(default=None, repr=False)
    #: Elements of one slot, of one partition if on chip.
    elements: int = field(init=False, repr=False, compare=False)
    #: Bytes of one slot, of one partition if on chip.
    slot_bytes: int = field(init=False, repr=False, compare=False)
    #: Bytes from the start of slot 0 to the end of the last slot.
    extent: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        elements = math.prod(self.shape[1:] if self.on_chip else self.shape)
        size = elements * bytes_of(self.dtype)
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "slot_bytes", size)
        object.__setattr__(self, "extent", (self.slots - 1) * self.stride + size)
        if self.on_chip and not self.shape:
            raise MalformedProgramError(f"{self.name}: a tile needs a partition dimension.")
        if min(self.shape, default=1) < 1 or self.slots < 1 or self.partition < 0:
            raise MalformedProgramError(
                f"{self.name}: shape {self.shape}, {self.slots} slots at partition"
                f" {self.partition}; sizes must be positive."
            )

    def __hash__(self) -> int:
        return hash(self.name)  # one program has one buffer of a name

    @property
    def on_chip(self) -> bool:
        """Whether it lies on partitions: in SBUF or PSUM."""
        return self.memory is not Memory.HBM

    @property
    def partitions(self) -> int:
        """Partitions that it occupies; 1 in HBM."""
        return self.shape[0] if self.on_chip else 1

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return self.slot_bytes if self.slot_stride is None else self.slot_stride


@dataclass(frozen=True, slots=True)
class Register:
    """A 32-bit scalar register, set at run time; `limit` is the greatest value it may hold, and
    `usual` a greatest value that is expected, for estimates of time alone.

    Registers are virtual, as in NKI: every engine sees the same value.
    """

    name: str
    limit: int | None = None
    usual: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class RegisterOffset:
    """base + stride · register, in elements: an address known at run time only."""

    register: Register
    stride: int = 1
    base: Affine = ZERO

    def interval(self, trips: Mapping[str, int]) -> Interval | None:
        """Least and greatest value; None if the register has no limit."""
        if self.register.limit is None:
            return None
        low, high = self.base.interval(trips)
        reach = self.stride * self.register.limit
        return Interval(low + min(0, reach), high + max(0, reach))


@dataclass(frozen=True, slots=True, eq=False)
class Immediate:
    """A number within the instruction. NaN equals NaN here, and 0.0, -0.0 and 0 differ.

    `element_type` is needed where no operand beside it has the type that is computed in.
    """

    value: float | int
    element_type: ElementType | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, bool):  # truth is 1, also in programs' text
            object.__setattr__(self, "value", int(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Immediate) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, ElementType | None]:
        return repr(self.value), self.element_type


_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a walk: `size` steps of `stride` elements."""

    stride: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise MalformedProgramError(f"an access pattern of size {self.size}; use 1 or more.")


@dataclass(frozen=True, slots=True)
class Span:
    """The elements an access may touch: a start that depends on loops, and an interval about it.

    `start` is the offset in elements within a partition; None if only a register knows it. `reach`
    is the interval of elements about the start; the last element is included.
    """

    start: Affine | None
    reach: Interval
    partition: Affine
    partitions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """An access pattern over one slot of a buffer.

    `partition` counts from the buffer's first partition. In HBM it is 0 and `partitions` is 1: what
    goes to different partitions is the first of `dims`. `slot` is taken modulo the buffer's slots.
    `dtype` reads the same bits as another type of the same width.
    """

    buffer: Buffer
    partition: Affine = ZERO
    partitions: int = 1
    offset: Affine | RegisterOffset = ZERO
    dims: tuple[Dim, ...] = ()
    slot: Affine = ZERO
    dtype: ElementType | None = None

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise MalformedProgramError(
                f"an access to {self.partitions} partitions; use 1 or more."
            )
        if self.dtype is not None and self.dtype.storage_bits != self.buffer.dtype.storage_bits:
            raise MalformedProgramError(
                f"{self.buffer.name}: {self.buffer.dtype.name} cannot be read as"
                f" {self.dtype.name}, which has another width."
            )

    @property
    def memory(self) -> Memory:
        return self.buffer.memory

    @property
    def element_type(self) -> ElementType:
        """The type that its elements are read or written as."""
        return self.dtype or self.buffer.dtype

    @property
    def walk(self) -> tuple[object, ...]:
        """The elements of its buffer, as a key of those that are equal."""
        return self.slot, self.partition, self.partitions, self.offset, self.dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the free dimensions."""
        return tuple(dim.size for dim in self.dims)

    @property
    def free_elements(self) -> int:
        """Elements in one partition; all of them in HBM."""
        return math.prod([dim.size for dim in self.dims])

    @property
    def elements(self) -> int:
        """Elements in all partitions."""
        return self.partitions * self.free_elements

    @property
    def nbytes(self) -> int:
        """Bytes that move when it is read or written once."""
        return self.elements * bytes_of(self.element_type)

    @property
    def reach(self) -> Interval:
        """Least and greatest offset in elements about the start."""
        low = high = 0
        for dim in self.dims:
            end = dim.stride * (dim.size - 1)
            if end < 0:
                low += end
            else:
                high += end
        return Interval(low, high)

    @property
    def span(self) -> Span:
        """What it may touch, for dependence analysis."""
        start = self.offset if isinstance(self.offset, Affine) else None
        return Span(start, self.reach, self.partition, self.partitions)

    @property
    def variables(self) -> frozenset[str]:
        """Loop variables that its address depends on."""
        base = self.offset if isinstance(self.offset, Affine) else self.offset.base
        if not (base.terms or self.partition.terms or self.slot.terms):
            return _NONE
        return frozenset((*base.variables, *self.partition.variables, *self.slot.variables))

    @property
    def registers(self) -> tuple[Register, ...]:
        """Registers that its address depends on."""
        return (self.offset.register,) if isinstance(self.offset, RegisterOffset) else ()

    def bounds(self, trips: Mapping[str, int]) -> Interval | None:
        """Elements touched while loops run; None where a register without limit decides."""
        start = self.offset.interval(trips)
        reach = self.reach
        return start and Interval(start.low + reach.low, start.high + reach.high)


def whole(buffer: Buffer, *, slot: Affine = ZERO) -> Access:
    """All of one slot of `buffer`, dimension by dimension."""
    sizes = buffer.shape[1:] if buffer.on_chip else buffer.shape
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    dims = tuple(Dim(stride, size) for stride, size in zip(strides, sizes, strict=True))
    return Access(buffer=buffer, partitions=buffer.partitions, dims=dims, slot=slot)


Scalar = Immediate | Access
"""A constant, or one element per partition that is broadcast along the free dimensions."""

Operand = Access | Immediate | Register | Affine
