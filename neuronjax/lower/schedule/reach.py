"""What nodes touch while the loops about them stand still, and whether two of them meet.

Loops within a node run: their variables are ranges. Variables of loops about it are unknown, but
the same for both nodes, so that only differences count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from neuronjax.formats import FORMATS
from neuronjax.program.affine import Affine
from neuronjax.program.conflicts import Touch, conflicts
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Memory, Register
from neuronjax.program.program import Loop, Node

Trips = Mapping[str, int]
Terms = tuple[tuple[str, int], ...]
Walk = tuple[tuple[int, int], ...]
"""Strides above 0 and sizes."""


class Reach(NamedTuple):
    """What a node touches of a buffer of `slots` and elements of so many `bits`.

    Of slots, partitions and elements, the least and greatest are given, less the terms of the loops
    that stand. `walk` says which elements exactly; None: registers know.
    """

    bits: int
    slots: int
    slot_terms: Terms
    slot: tuple[int, int]
    lane_terms: Terms
    lanes: tuple[int, int]
    terms: Terms
    elements: tuple[int, int]
    walk: Walk | None

    def later(self, variable: str, by: int) -> Reach:
        """The same so many iterations of a loop later."""
        slot = _coefficient(self.slot_terms, variable) * by
        lane = _coefficient(self.lane_terms, variable) * by
        element = _coefficient(self.terms, variable) * by
        if not slot and not lane and not element:
            return self
        return self._replace(
            slot=(self.slot[0] + slot, self.slot[1] + slot),
            lanes=(self.lanes[0] + lane, self.lanes[1] + lane),
            elements=(self.elements[0] + element, self.elements[1] + element),
        )

    def meets(self, other: Reach) -> bool:
        """Whether both may touch the same element of buffers that begin at one place."""
        if self.bits != other.bits:
            return True
        if self.slots == other.slots > 1 and self.slot_terms == other.slot_terms:
            is_known = self.slot[0] == self.slot[1] and other.slot[0] == other.slot[1]
            if is_known and (self.slot[0] - other.slot[0]) % self.slots:
                return False
        if self.lane_terms == other.lane_terms and (
            self.lanes[0] > other.lanes[1] or other.lanes[0] > self.lanes[1]
        ):
            return False
        if self.walk is None or other.walk is None or self.terms != other.terms:
            return True
        distance = self.elements[0] - other.elements[0]
        if distance > other.elements[1] - other.elements[0]:
            return False
        if -distance > self.elements[1] - self.elements[0]:
            return False
        return not distance or _meet(distance, self.walk, other.walk)


_ANY = Buffer(name="any", memory=Memory.HBM, dtype=FORMATS["float32"], shape=(1,))


@functools.lru_cache(maxsize=1 << 14)
def _meet(distance: int, walk: Walk, other: Walk) -> bool:
    first, second = Touch(_ANY, True, distance, walk, True), Touch(_ANY, True, 0, other, True)
    return conflicts((first,), (second,), _begin_together) is not False


def _begin_together(buffer: Buffer, other: Buffer) -> bool:
    return True


def _coefficient(terms: Terms, variable: str) -> int:
    return next((factor for name, factor in terms if name == variable), 0)


class Contact(NamedTuple):
    """A use of a buffer or register; `reach` is None for a register, or what else has a state."""

    place: str
    is_write: bool
    reach: Reach | None
    buffer: Buffer | None = None


def contacts(node: Node) -> tuple[Contact, ...]:
    """Everything that a node touches."""
    contacts: dict[tuple[str, bool, Reach | None], Contact] = {}
    for contact in _contacts(node, {}):
        contacts.setdefault(contact[:3], contact)
    return tuple(contacts.values())


def _contacts(node: Node, trips: Trips) -> Iterator[Contact]:
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
            yield Contact(operand.buffer.name, is_write, _reach(operand, trips), operand.buffer)
            for register in operand.registers:
                yield Contact(f"${register.name}", False, None)


def _reach(access: Access, trips: Trips) -> Reach:
    buffer = access.buffer
    slot, slot_terms = _standing(access.slot, trips)
    lanes, lane_terms = _standing(access.partition, trips)
    elements: tuple[int, int] = (0, 0)
    terms: Terms = ()
    walk: Walk | None = None
    if isinstance(access.offset, Affine):
        steps = [(dim.stride, dim.size) for dim in access.dims]
        steps += [(factor, trips[name]) for name, factor in access.offset.terms if name in trips]
        elements, terms = _standing(access.offset, trips)
        low, high = access.reach
        elements = (elements[0] + low, elements[1] + high)
        walk = tuple((abs(stride), size) for stride, size in steps if stride and size > 1)
    return Reach(
        bits=buffer.dtype.storage_bits,
        slots=buffer.slots,
        slot_terms=slot_terms,
        slot=slot,
        lane_terms=lane_terms,
        lanes=(lanes[0], lanes[1] + access.partitions - 1),
        terms=terms,
        elements=elements,
        walk=walk,
    )


def _standing(value: Affine, trips: Trips) -> tuple[tuple[int, int], Terms]:
    """Least and greatest value less the terms of loops that stand."""
    if not value.terms:
        return (value.base, value.base), ()
    low = high = value.base
    for name, factor in value.terms:
        if name in trips:
            end = factor * (trips[name] - 1)
            low, high = low + min(0, end), high + max(0, end)
    return (low, high), tuple(term for term in value.terms if term[0] not in trips)
