"""What nodes touch while the loops about them stand still, and whether two of them meet.

Loops within a node run: their variables are ranges. Variables of loops about it are unknown, but
the same for both nodes, so that only differences count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.program.affine import Affine
from neuronjax.program.conflicts import Touch, conflicts
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import children

Trips = Mapping[str, int]
Terms = tuple[tuple[str, int], ...]

_INDIRECT = "table"
"""The field of what indices choose from."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a node touches of a buffer.

    `slot` None: any. `lanes` are the partitions, first and last, about the `lane_terms` of loops
    that stand; `low` to `high` the elements about `terms`, exactly those of `touch`.
    """

    buffer: Buffer
    slot: Affine | None
    lane_terms: Terms
    lanes: tuple[int, int]
    terms: Terms
    low: int
    high: int
    touch: Touch

    def meets(self, other: Reach) -> bool:
        """Whether both may touch the same element of buffers that begin at one place."""
        if self.buffer.dtype.storage_bits != other.buffer.dtype.storage_bits:
            return True
        if self.slot is not None and other.slot is not None and self.slot.terms == other.slot.terms:
            distance = self.slot.base - other.slot.base
            if self.buffer.slots == other.buffer.slots and distance % self.buffer.slots:
                return False
        if self.lane_terms == other.lane_terms and (
            self.lanes[0] > other.lanes[1] or other.lanes[0] > self.lanes[1]
        ):
            return False
        if self.touch.terms is None or other.touch.terms is None or self.terms != other.terms:
            return True
        if self.low > other.high or other.low > self.high:
            return False
        return self.touch is other.touch or _meet(self.touch, other.touch)


@functools.lru_cache(maxsize=1 << 14)
def _meet(one: Touch, other: Touch) -> bool:
    return conflicts((one,), (other,), _begin_together) is not False


def _begin_together(one: Buffer, other: Buffer) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Contact:
    """A use of a buffer or register; `reach` is None for a register, or what else has a state."""

    place: str
    is_write: bool
    reach: Reach | None


def contacts(node: Node) -> tuple[Contact, ...]:
    """Everything that a node touches, each once."""
    return tuple(dict.fromkeys(_contacts(node, {})))


def _contacts(node: Node, trips: Trips) -> Iterator[Contact]:
    if not isinstance(node, Instruction):
        assert isinstance(node, Loop)
        assert isinstance(node.trips, int)
        for each in children(node):
            yield from _contacts(each, {**trips, node.variable: node.trips})
        return
    for use in node.uses():
        operand, is_write = use.operand, use.role.is_write
        if isinstance(operand, Register):
            yield Contact(f"${operand.name}", is_write, None)
        elif isinstance(operand, Access):
            found = _reach(operand, trips, is_write, use.field != _INDIRECT)
            yield Contact(operand.buffer.name, is_write, found)
            for register in operand.registers:
                yield Contact(f"${register.name}", False, None)


def _reach(access: Access, trips: Trips, is_write: bool, is_exact: bool) -> Reach:
    lane, lane_terms = _standing(access.partition, trips)
    slot: Affine | None = access.slot
    if any(name in trips for name, _ in access.slot.terms):
        slot = None
    low = high = 0
    terms: Terms = ()
    walk: tuple[tuple[int, int], ...] | None = None
    if not isinstance(access.offset, RegisterOffset):
        steps = [(dim.stride, dim.size) for dim in access.dims]
        steps += [(factor, trips[name]) for name, factor in access.offset.terms if name in trips]
        terms = tuple(term for term in access.offset.terms if term[0] not in trips)
        low = high = access.offset.base
        for stride, size in steps:
            low, high = low + min(0, stride * (size - 1)), high + max(0, stride * (size - 1))
        walk = tuple((abs(stride), size) for stride, size in steps if stride and size > 1)
    # One record for both directions: `is_write` makes two touches comparable at all.
    touch = Touch(access.buffer, True, low, walk, is_exact)
    last = lane[1] + access.partitions - 1
    return Reach(access.buffer, slot, lane_terms, (lane[0], last), terms, low, high, touch)


def _standing(value: Affine, trips: Trips) -> tuple[tuple[int, int], Terms]:
    """Least and greatest value about the terms of loops that stand."""
    running = Affine(value.base, tuple(term for term in value.terms if term[0] in trips))
    return tuple(running.interval(trips)), tuple(  # type: ignore[return-value]
        term for term in value.terms if term[0] not in trips
    )
