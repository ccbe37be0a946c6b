"""Kernels that differ only in where in memory they work.

In HBM these are other buffers, perhaps of another shape, or other elements of them, perhaps in a
loop about the kernel; on chip other addresses, or the slots of a tile in turn from another one on.
The layers of a model are such kernels, and so are the halves of a kernel that both physical cores
run. The order that is best for one of them is best for all, and so are semaphores: both are looked
for once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from neuronjax.lower.sync.dependences import Overlap
from neuronjax.lower.write.rebuild import mapped
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.instruction import Instruction, operand_fields
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.records import altered
from neuronjax.program.walk import leaves


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer of HBM, and the element from which a kernel's accesses to it are counted."""

    buffer: Buffer
    start: Affine


@dataclass(frozen=True, slots=True)
class Outline:
    """A kernel less its places in memory: kernels with equal keys are alike."""

    key: Hashable
    places: tuple[Place, ...]
    """The places that it uses in HBM."""


def outline(kernel: Kernel, *relations: Overlap) -> Outline:
    """The outline of a kernel of instructions and loops.

    `relations` say what is known of two buffers in HBM, such as whether they share memory. Of
    accesses to buffers that may, and to what a register points into, the very elements count; of
    all others only how far apart they are. Tiles on chip share as much memory with each other.
    """
    accesses = [access for leaf in leaves(kernel.body) for access in leaf.accesses()]
    used = {access.buffer.name: access.buffer for access in accesses}
    buffers = [buffer for buffer in used.values() if not buffer.on_chip]
    meetings = tuple(
        tuple(relation(buffer, other) for relation in relations)
        for index, buffer in enumerate(buffers)
        for other in buffers[:index]
    )
    are_apart = not any(answer is not False for meeting in meetings for answer in meeting)
    starts = _starts(accesses, _variables(kernel.body)) if are_apart else {}
    places = tuple(Place(buffer, starts.get(buffer.name, ZERO)) for buffer in buffers)
    numbers = {place.buffer.name: (n, place.start * -1) for n, place in enumerate(places)}
    numbers.update(_turns(accesses))
    tiles = {buffer.name: buffer for buffer in kernel.buffers}
    tiles.update((name, buffer) for name, buffer in used.items() if buffer.on_chip)
    key = (
        _nodes(kernel.body, numbers),
        tuple(_described(tiles.values())),
        tuple(map(_elements, buffers)) if are_apart else tuple(_described(buffers)),
        meetings,
    )
    return Outline(key, places)


def at_places(nodes: tuple[Node, ...], old: Outline, new: Outline) -> tuple[Node, ...]:
    """The nodes of a kernel of one outline, at the places in HBM of another one that is alike."""
    targets = {
        place.buffer.name: (other.buffer, other.start + place.start * -1)
        for place, other in zip(old.places, new.places, strict=True)
    }
    seen: dict[int, tuple[Access, Access]] = {}

    def operand(old: Any) -> Any:
        if not isinstance(old, Access) or old.buffer.on_chip:
            return old
        if id(old) not in seen:
            buffer, by = targets[old.buffer.name]
            offset = old.offset + by if isinstance(old.offset, Affine) else old.offset
            seen[id(old)] = (old, altered(old, buffer=buffer, offset=offset))
        return seen[id(old)][1]

    def change(node: Instruction) -> Instruction:
        uses_hbm = any(not access.buffer.on_chip for access in node.accesses())
        return node.with_operands(operand) if uses_hbm else node

    return mapped(nodes, Instruction, change)


def _variables(nodes: tuple[Node, ...]) -> set[str]:
    """The variables of all loops in some nodes."""
    loops = [node for node in nodes if isinstance(node, Loop)]
    return {loop.variable for loop in loops}.union(*(_variables(loop.body) for loop in loops))


def _starts(accesses: Iterable[Access], inner: Set[str]) -> dict[str, Affine]:
    """The first element of the first access to each buffer in HBM that no register points into,
    at the first iteration of the `inner` loops."""
    starts: dict[str, Affine] = {}
    pointed: set[str] = set()
    for access in accesses:
        offset = access.offset
        if isinstance(offset, Affine):
            outer = tuple(term for term in offset.terms if term[0] not in inner)
            starts.setdefault(access.buffer.name, Affine(offset.base, outer))
        else:
            pointed.add(access.buffer.name)
    return {name: start for name, start in starts.items() if name not in pointed}


def _turns(accesses: Iterable[Access]) -> dict[str, tuple[int, Affine]]:
    """The slots of each tile of several, and what takes the slot of its first access to 0."""
    turns: dict[str, tuple[int, Affine]] = {}
    for access in accesses:
        buffer = access.buffer
        if buffer.on_chip and buffer.slots > 1:
            turns.setdefault(buffer.name, (buffer.slots, Affine(-access.slot.base)))
    return turns


def _described(buffers: Iterable[Buffer]) -> list[Hashable]:
    """Buffers with their names, and where they lie among those that they share memory with."""
    buffers = list(buffers)
    among: dict[str, tuple[int, int]] = {}
    placed = [buffer for buffer in buffers if buffer.address is not None]
    memory, start, end, groups = None, 0, 0, 0
    for buffer in sorted(placed, key=lambda buffer: (buffer.memory.value, buffer.address)):
        assert buffer.address is not None
        if buffer.memory is not memory or buffer.address >= end:
            memory, start, end, groups = buffer.memory, buffer.address, 0, groups + 1
        among[buffer.name] = (groups, buffer.address - start)
        end = max(end, buffer.address + buffer.extent)
    numbers: dict[int, int] = {}
    described: list[Hashable] = []
    for buffer in buffers:
        where: Hashable = None
        if buffer.name in among:
            group, offset = among[buffer.name]
            where = numbers.setdefault(group, len(numbers)), offset
        described.append((buffer.name, _form(buffer), where))
    return described


def _form(buffer: Buffer) -> Hashable:
    return (
        buffer.memory.value,
        buffer.dtype.name,
        buffer.shape,
        buffer.partition,
        buffer.slots,
        buffer.slot_stride,
    )


def _elements(buffer: Buffer) -> Hashable:
    """The form of a buffer that nothing lies beside: the ends of its dimensions do not matter."""
    return buffer.dtype.name, buffer.slots, buffer.stride if buffer.slots > 1 else None


Numbers = Mapping[str, tuple[int, Affine]]
"""Buffer of HBM -> its number, and what takes its start to 0; tile of several slots -> those, and
what takes its first one to 0."""


def _nodes(nodes: tuple[Node, ...], numbers: Numbers) -> Hashable:
    return tuple(_node(node, numbers) for node in nodes)


def _node(node: Node, numbers: Numbers) -> Hashable:
    if isinstance(node, Loop):
        return node.variable, node.trips, _nodes(node.body, numbers)
    kind: Any = type(node)
    operands, others = _fields(kind)
    places = tuple(_value(getattr(node, name), numbers) for name in operands)
    return kind, places, others(node)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """The names of an instruction's fields that hold operands, and what reads all others."""
    operands = tuple(name for name, _, _ in operand_fields(kind))
    names = (field.name for field in dataclasses.fields(kind))
    return operands, attrgetter(*(name for name in names if name not in operands))


def _value(value: Any, numbers: Numbers) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(entry, numbers) for entry in value)
    if not isinstance(value, Access):
        return value
    offset: Any = value.offset
    place: Any = value.buffer.name
    slot = value.slot
    if value.buffer.on_chip and place in numbers:
        slots, shift = numbers[place]
        slot = Affine((slot.base + shift.base) % slots, slot.terms)
    if not value.buffer.on_chip:
        place, shift = numbers[place]
        offset = offset + shift if isinstance(offset, Affine) else offset
    return (
        place,
        offset,
        value.partition,
        value.partitions,
        value.dims,
        slot,
        value.dtype,
    )
