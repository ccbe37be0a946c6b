"""What an access touches while loops run: the one description for all that compare accesses.

Loops about an access either run, so that it goes through all of their iterations, or stand still at
an iteration that nobody knows. Of those only the terms are kept: where two footprints have the same
ones, they can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from neuronjax.program.affine import Affine
from neuronjax.program.operand import Access
from neuronjax.program.strided import Strided, strided

Standing = tuple[tuple[str, int], ...]
"""Variables of loops that stand still, and factors."""


class Range(NamedTuple):
    """The integers from `low` to `high` about the terms of loops that stand still."""

    low: int
    high: int
    standing: Standing

    def later(self, variable: str, by: int) -> Range:
        """This range so many iterations of a loop later."""
        further = _factor(self.standing, variable) * by
        if not further:
            return self
        return Range(self.low + further, self.high + further, self.standing)

    def is_apart(self, other: Range) -> bool:
        """Whether this range and another have surely nothing in common."""
        if self.standing != other.standing:
            return False
        return self.low > other.high or other.low > self.high


class Footprint(NamedTuple):
    """The slots, partitions and elements of a buffer that an access touches.

    `elements` are None where nobody knows which: a register does, or a loop that runs has no known
    number of trips.
    """

    slots: int  # of the buffer
    slot: Range
    partitions: Range
    elements: Strided | None
    standing: Standing  # of elements
    bits: int  # of an element

    @property
    def is_known(self) -> bool:
        """Whether it is known which elements it touches, whatever loops stand still."""
        return self.elements is not None and not self.standing

    def later(self, variable: str, by: int) -> Footprint:
        """This footprint so many iterations of a loop later."""
        slot = self.slot.later(variable, by)
        partitions = self.partitions.later(variable, by)
        further = _factor(self.standing, variable) * by
        if not further and slot is self.slot and partitions is self.partitions:
            return self
        elements = self.elements and self.elements.shifted(further)
        return Footprint(self.slots, slot, partitions, elements, self.standing, self.bits)

    def meets(self, other: Footprint) -> bool:
        """Whether two footprints may share an element of buffers that begin at one place."""
        if self.bits != other.bits:
            return True
        if self._is_in_other_slot(other) or self.partitions.is_apart(other.partitions):
            return False
        if self.elements is None or other.elements is None or self.standing != other.standing:
            return True
        return self.elements.meets(other.elements) is not False

    def _is_in_other_slot(self, other: Footprint) -> bool:
        slot, others = self.slot, other.slot
        if not self.slots == other.slots > 1 or slot.standing != others.standing:
            return False
        is_known = slot.low == slot.high and others.low == others.high
        return is_known and (slot.low - others.low) % self.slots != 0


def footprint(access: Access, trips: Mapping[str, int | None]) -> Footprint:
    """What an access touches while the loops `trips` run, and all others stand still."""
    elements: Strided | None = None
    standing: list[tuple[str, int]] = []
    if isinstance(access.offset, Affine):
        steps = [(dim.stride, dim.size) for dim in access.dims]
        is_known = True
        for name, factor in access.offset.terms:
            if name not in trips:
                standing.append((name, factor))
            elif (count := trips[name]) is None:
                is_known = False
            else:
                steps.append((factor, count))
        if is_known:
            elements = strided(access.offset.base, steps)
    return Footprint(
        slots=access.buffer.slots,
        slot=_range(access.slot, 1, trips),
        partitions=_range(access.partition, access.partitions, trips),
        elements=elements,
        standing=tuple(standing),
        bits=access.buffer.dtype.storage_bits,
    )


def _range(value: Affine, size: int, trips: Mapping[str, int | None]) -> Range:
    """The integers from `value` on, as many as `size`."""
    low, high = value.base, value.base + size - 1
    if not value.terms:
        return Range(low, high, ())
    standing = []
    for name, factor in value.terms:
        count = trips.get(name)
        if count is None:
            standing.append((name, factor))
        else:
            end = factor * (count - 1)
            low, high = low + min(0, end), high + max(0, end)
    return Range(low, high, tuple(standing))


def _factor(standing: Standing, variable: str) -> int:
    return next((factor for name, factor in standing if name == variable), 0)
