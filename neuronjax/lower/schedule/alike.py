"""Kernels that differ only in the buffers of HBM they use, and in where in these they begin.

The layers of a model are such kernels. What clocks say about one of them holds for all, and so does
the order that is best: it is looked for once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from neuronjax.lower.schedule.precedence import Shared
from neuronjax.lower.sync.dependences import Overlap
from neuronjax.lower.write.rebuild import rebuilt
from neuronjax.program.affine import Affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.walk import leaves


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer of HBM, and the element from which a kernel's accesses to it are counted."""

    buffer: Buffer
    start: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A kernel less its places in HBM: kernels with equal keys are alike."""

    key: Hashable
    places: tuple[Place, ...]


def outline(kernel: Kernel, shared: Shared, overlap: Overlap) -> Outline:
    """The outline of a kernel of instructions and loops.

    `shared` and `overlap` say which of its buffers share memory. Of accesses to those, and to what
    a register points into, the very elements count; of all others only how far apart they are.
    """
    buffers = _in_hbm(kernel)
    meetings = tuple(
        (shared(buffer, other), overlap(buffer, other))
        for index, buffer in enumerate(buffers)
        for other in buffers[:index]
    )
    are_apart = all(meeting == (False, False) for meeting in meetings)
    starts = _starts(kernel) if are_apart else {}
    places = tuple(Place(buffer, starts.get(buffer.name, 0)) for buffer in buffers)
    numbers = {place.buffer.name: (n, place.start) for n, place in enumerate(places)}
    described = tuple(
        dataclasses.replace(buffer, name="hbm", kind=Kind.SCRATCH, data=None) for buffer in buffers
    )
    return Outline((_nodes(kernel.body, numbers), kernel.buffers, described, meetings), places)


def at_places(nodes: tuple[Node, ...], old: Outline, new: Outline) -> tuple[Node, ...]:
    """The nodes of a kernel of one outline, at the places of another one that is alike."""
    targets = {
        place.buffer.name: (other.buffer, other.start - place.start)
        for place, other in zip(old.places, new.places, strict=True)
    }
    seen: dict[int, tuple[Access, Access]] = {}

    def operand(old: Any) -> Any:
        if not isinstance(old, Access) or old.buffer.on_chip:
            return old
        if id(old) not in seen:
            buffer, by = targets[old.buffer.name]
            offset = old.offset + by if isinstance(old.offset, Affine) else old.offset
            seen[id(old)] = (old, dataclasses.replace(old, buffer=buffer, offset=offset))
        return seen[id(old)][1]

    def change(node: Node) -> Node | None:
        if not isinstance(node, Instruction):
            return None
        uses_hbm = any(not access.buffer.on_chip for access in node.accesses())
        return node.with_operands(operand) if uses_hbm else node

    return rebuilt(nodes, change)


def _in_hbm(kernel: Kernel) -> list[Buffer]:
    """The buffers of HBM that a kernel uses, in the order of their first uses."""
    accesses = (access for leaf in leaves(kernel.body) for access in leaf.accesses())
    return list({access.buffer.name: access.buffer for access in accesses
                 if not access.buffer.on_chip}.values())  # fmt: skip


def _starts(kernel: Kernel) -> dict[str, int]:
    """The first element of the first access to each buffer that no register points into."""
    starts: dict[str, int] = {}
    pointed: set[str] = set()
    for leaf in leaves(kernel.body):
        for access in leaf.accesses():
            if isinstance(access.offset, Affine):
                starts.setdefault(access.buffer.name, access.offset.base)
            else:
                pointed.add(access.buffer.name)
    return {name: start for name, start in starts.items() if name not in pointed}


Numbers = Mapping[str, tuple[int, int]]
"""Buffer of HBM -> its number, and its start."""


def _nodes(nodes: tuple[Node, ...], numbers: Numbers) -> Hashable:
    return tuple(_node(node, numbers) for node in nodes)


def _node(node: Node, numbers: Numbers) -> Hashable:
    if isinstance(node, Loop):
        return node.variable, node.trips, _nodes(node.body, numbers)
    kind: Any = type(node)
    return kind, _value(_fields(kind)(node), numbers)


@functools.cache
def _fields(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*(field.name for field in dataclasses.fields(kind)))


def _value(value: Any, numbers: Numbers) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(entry, numbers) for entry in value)
    if not isinstance(value, Access) or value.buffer.on_chip:
        return value
    number, start = numbers[value.buffer.name]
    offset = value.offset
    return (
        number,
        offset + -start if isinstance(offset, Affine) else offset,
        value.partition,
        value.partitions,
        value.dims,
        value.slot,
        value.dtype,
    )
