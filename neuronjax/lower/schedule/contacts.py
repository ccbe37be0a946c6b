"""What nodes touch while the loops about them stand still.

Loops within a node run. Variables of loops about it are unknown, but the same for all nodes of a
list, so that only differences count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from neuronjax.program.footprint import Footprint, footprint
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register
from neuronjax.program.program import Loop, Node


class Contact(NamedTuple):
    """A use of a buffer or register. Registers, and what else has a state, have no `footprint`."""

    place: str
    is_write: bool
    footprint: Footprint | None
    buffer: Buffer | None = None


def contacts(node: Node) -> tuple[Contact, ...]:
    """Everything that a node touches."""
    contacts: dict[tuple[str, bool, Footprint | None], Contact] = {}
    for contact in _contacts(node, {}):
        contacts.setdefault(contact[:3], contact)
    return tuple(contacts.values())


def _contacts(node: Node, trips: Mapping[str, int]) -> Iterator[Contact]:
    if not isinstance(node, Instruction):
        assert isinstance(node, Loop)
        assert isinstance(node.trips, int)
        for inner in node.body:
            yield from _contacts(inner, {**trips, node.variable: node.trips})
        return
    for use in node.uses():
        operand, is_write = use.operand, use.role.is_write
        if isinstance(operand, Register):
            yield Contact(f"${operand.name}", is_write, None)
        elif isinstance(operand, Access):
            touched = footprint(operand, trips)
            yield Contact(operand.buffer.name, is_write, touched, operand.buffer)
            for register in operand.registers:
                yield Contact(f"${register.name}", False, None)
