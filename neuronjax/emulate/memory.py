"""The memories of a logical core as bytes, and the locations of buffers in them.

A `Storage` is rows of bytes: partitions of SBUF or PSUM, or the one row of HBM. Buffers without an
address have a storage of their own, so that programs can run before allocation. Unwritten bytes are
all ones: NaN in every format that has one; as integers, -1 or the greatest number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import ArgumentMismatchError, MemoryAccessError
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.program import Program, Split
from neuronjax.program.walk import buffers, walk

UNWRITTEN = 0xFF
"""The value of bytes before they are written."""
_HELD = (Kind.ARGUMENT, Kind.CONSTANT)
MARK = np.dtype(np.uint16)
"""Holds the number of a buffer for a byte."""
_OWNERS = np.iinfo(MARK).max
_ALIGNMENT = 64
"""Rows of a storage are a multiple of this many bytes."""


Area = tuple[int, int, int, int]
"""First row and the one after the last; first byte of a row and the one after the last."""


class Storage:
    """`rows` × `width` bytes under one name."""

    def __init__(self, name: str, rows: int, width: int) -> None:
        self.name = name
        self.rows = rows
        self.width = width
        self.flat = np.empty(rows * width, np.uint8)
        #: What all addresses and sizes of elements in it are multiples of; 0: nothing lies in it.
        self.granule = 0

    def take(self, buffer: Buffer, address: int) -> None:
        """Registers a buffer that lies in it."""
        step = buffer.stride if buffer.slots > 1 else 0
        self.granule = math.gcd(self.granule, bytes_of(buffer.dtype), address, step, self.width)


@dataclass(frozen=True, slots=True)
class Location:
    """The place where slot 0 of a buffer begins."""

    storage: Storage
    row: int
    address: int
    #: A number from 1 on for what is written there; buffers that are aliases have the same.
    owner: int = 1

    def area(self, buffer: Buffer) -> Area:
        """The rows and bytes of a buffer that begins here."""
        last = self.row + buffer.partitions
        return self.row, last, self.address, self.address + buffer.extent

    def bytes_of(self, buffer: Buffer) -> np.ndarray:
        """A view of all bytes of a buffer, from slot 0 to the last: [partitions, extent]."""
        rows = self.storage.flat.reshape(self.storage.rows, self.storage.width)
        first_row, last_row, first, last = self.area(buffer)
        return rows[first_row:last_row, first:last]


Locations = Mapping[str, Location]
"""Buffer name -> its location."""


class Memories:
    """HBM of one logical core, SBUF and PSUM of each of its physical cores."""

    def __init__(self, program: Program) -> None:
        core = program.target.core
        self._program = program
        self._aliases = {alias.buffer: alias.of for alias in program.aliases}
        self._limits = {
            Memory.SBUF: (core.sbuf.partitions, core.sbuf.partition_bytes),
            Memory.PSUM: (core.psum.partitions, core.psum.partition_bytes),
        }
        #: By memory and physical core; HBM is the first core's.
        self._shared = {
            (memory, core): Storage(_name(memory, core), rows, min(used, most))
            for memory, (rows, most) in self._limits.items()
            for core, used in enumerate(_used_on_chip(program, memory))
        }
        self._shared[Memory.HBM, 0] = Storage("hbm", 1, _end(_in_hbm(program)))
        self.locations: dict[str, Location] = {}
        self._owners = 0
        #: Path of a kernel and name of its buffer -> buffer and where it is.
        self.inner: dict[str, tuple[Buffer, Location]] = {}
        for buffer in _originals_first(program.buffers, self._aliases):
            self.locations[buffer.name] = self._locate(buffer, self.locations, program.name)
        self.clear()

    def clear(self) -> None:
        """Resets all bytes to unwritten except those of arguments and constants."""
        for (memory, _), storage in self._shared.items():
            if memory is not Memory.HBM:
                storage.flat.fill(UNWRITTEN)
        outer = ((buffer, self.locations[buffer.name]) for buffer in self._program.buffers)
        for buffer, location in (*outer, *self.inner.values()):
            if buffer.kind not in _HELD and (buffer.address is None or not buffer.on_chip):
                location.bytes_of(buffer)[...] = UNWRITTEN

    @property
    def nbytes(self) -> int:
        """Bytes up to the end of the last buffer that has an address, in all memories."""
        return sum(storage.flat.size for storage in self._shared.values())

    @property
    def aliased(self) -> frozenset[str]:
        """Names of buffers that intentionally share memory."""
        return frozenset((*self._aliases, *self._aliases.values()))

    def locate(
        self, tiles: Iterable[Buffer], outer: Locations, path: str, core: int = 0
    ) -> Locations:
        """`outer` and the buffers of a kernel: at their address, or in storage of their own.

        `core` is the physical core that runs the kernel.

        Raises:
          MemoryAccessError: a buffer ends beyond its memory.
        """
        locations = dict(outer)
        for buffer in _originals_first(tuple(tiles), self._aliases):
            locations[buffer.name] = self._locate(buffer, locations, path, core)
            self.inner[f"{path}/{buffer.name}"] = (buffer, locations[buffer.name])
            if buffer.address is None:
                locations[buffer.name].bytes_of(buffer)[...] = UNWRITTEN
        return locations

    def _locate(self, buffer: Buffer, known: Locations, path: str, core: int = 0) -> Location:
        original = known.get(self._aliases.get(buffer.name, ""))
        owner = self._next_owner() if original is None else original.owner
        rows = buffer.partition + buffer.partitions
        if buffer.address is None:
            if original is not None:
                original.storage.take(buffer, original.address)
                return original
            storage = Storage(f"{path}/{buffer.name}", rows, buffer.extent)
            storage.take(buffer, 0)
            return Location(storage, buffer.partition, 0, owner)
        storage = self._shared[buffer.memory, core if buffer.on_chip else 0]
        end = buffer.address + buffer.extent
        if rows > storage.rows or end > storage.width:
            raise MemoryAccessError(
                f"{path}: {buffer.name} occupies partitions {buffer.partition} to {rows - 1} and"
                f" bytes {buffer.address} to {end - 1}, but {storage.name} has only"
                f" {' partitions of '.join(map(str, self._limits[buffer.memory]))} bytes. Move it,"
                " or make it smaller."
            )
        storage.take(buffer, buffer.address)
        return Location(storage, buffer.partition, buffer.address, owner)

    def _next_owner(self) -> int:
        self._owners += 1
        return self._owners % _OWNERS + 1

    def load(self, arguments: Mapping[str, np.ndarray]) -> None:
        """Loads constants and arguments into their buffers.

        Raises:
          ArgumentMismatchError: an argument is missing, unknown, or has the wrong shape or dtype.
        """
        wanted = {buffer.name for buffer in self._program.buffers if buffer.kind is Kind.ARGUMENT}
        if wanted != set(arguments):
            raise ArgumentMismatchError(
                f"{self._program.name} takes the arguments {sorted(wanted)}, but got"
                f" {sorted(arguments)}. Pass one array for each argument."
            )
        for buffer in self._program.buffers:
            if buffer.kind is Kind.CONSTANT and buffer.data is not None:
                data = np.frombuffer(buffer.data, np.uint8)
                self._put(buffer, data)
            elif buffer.kind is Kind.ARGUMENT:
                self._put(buffer, _bytes_of_argument(buffer, arguments[buffer.name]))

    def held(self) -> list[tuple[Buffer, Location]]:
        """Buffers that are initialised before a program runs: arguments and constants."""
        held = (buffer for buffer in self._program.buffers if buffer.kind in _HELD)
        return [(buffer, self.locations[buffer.name]) for buffer in held]

    def _put(self, buffer: Buffer, data: np.ndarray) -> None:
        target = self.locations[buffer.name].bytes_of(buffer)
        target[:, : buffer.slot_bytes] = data.reshape(buffer.partitions, -1)

    def results(self) -> dict[str, np.ndarray]:
        """Copies of the buffers of kind result, by name."""
        wanted = (buffer for buffer in self._program.buffers if buffer.kind is Kind.RESULT)
        return {buffer.name: self.value(buffer, self.locations[buffer.name]) for buffer in wanted}

    def value(self, buffer: Buffer, location: Location, slot: int = 0) -> np.ndarray:
        """A copy of one slot of a buffer, with its shape and dtype."""
        start = slot % buffer.slots * buffer.stride
        rows = location.bytes_of(buffer)[:, start : start + buffer.slot_bytes]
        return rows.copy().view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)


def _name(memory: Memory, core: int) -> str:
    return f"{memory.value} of core {core}" if core else memory.value


def _in_hbm(program: Program) -> Iterator[Buffer]:
    return (buffer for _, buffer in buffers(program) if buffer.memory is Memory.HBM)


def _used_on_chip(program: Program, memory: Memory) -> list[int]:
    """Bytes per partition that each physical core needs."""
    cores: dict[int, int] = {}
    for _, node in walk(program):
        if isinstance(node, Split):
            cores.update({id(kernel): core for core, kernel in enumerate(node.kernels)})
    by_core: list[list[Buffer]] = [[] for _ in range(1 + max(cores.values(), default=0))]
    for place, buffer in buffers(program):
        if buffer.memory is memory:
            by_core[cores.get(id(place.kernel), 0)].append(buffer)
    return [_end(buffers_of_core) for buffers_of_core in by_core]


def _end(held: Iterable[Buffer]) -> int:
    """Bytes up to the end of the last buffer, which is all that is allocated."""
    ends = (buffer.address + buffer.extent for buffer in held if buffer.address is not None)
    return -(-max(ends, default=0) // _ALIGNMENT) * _ALIGNMENT


def _originals_first(tiles: tuple[Buffer, ...], aliases: Mapping[str, str]) -> list[Buffer]:
    """Buffers ordered so that every buffer comes before its aliases."""

    def depth(name: str, seen: frozenset[str] = frozenset()) -> int:
        of = aliases.get(name)
        return 0 if of is None or of in seen else 1 + depth(of, seen | {name})

    return sorted(tiles, key=lambda buffer: depth(buffer.name))


def _bytes_of_argument(buffer: Buffer, value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    dtype = numpy_dtype(buffer.dtype)
    if value.shape != buffer.shape or value.dtype != dtype:
        raise ArgumentMismatchError(
            f"argument {buffer.name} must be {dtype}{list(buffer.shape)}, but got"
            f" {value.dtype}{list(value.shape)}. Convert or reshape the array."
        )
    size = bytes_of(buffer.dtype)
    return np.ascontiguousarray(value).view(np.uint8).reshape(-1, size).reshape(-1)
