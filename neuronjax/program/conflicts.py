"""Whether unordered instructions touch the same elements of HBM, at least one of them writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.program.footprint import footprint
from neuronjax.program.instruction import Instruction, Use
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.program import Loop, Node
from neuronjax.program.strided import Strided
from neuronjax.program.walk import children

_MOST_PAIRS = 20_000
_INDIRECT = "table"
"""The field of operands that are accessed through indices."""

Same = Callable[[Buffer, Buffer], bool | None]
"""Whether two buffers of different names begin at the same address; None: they may overlap."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Elements of a buffer that an instruction touches in all iterations of the enclosing loops.

    `elements` are None where they depend on registers. With indices, fewer elements may be touched,
    and the touch is not exact.
    """

    buffer: Buffer
    is_write: bool
    elements: Strided | None
    is_exact: bool

    @property
    def length(self) -> int | None:
        """How many elements it touches, without gaps; None: it has gaps, or nobody knows."""
        return self.elements.length if self.elements is not None and self.is_exact else None


def touches(nodes: Iterable[Node]) -> list[Touch]:
    """The distinct touches of HBM by nodes."""
    return list(dict.fromkeys(_touches(nodes, {})))


def _touches(nodes: Iterable[Node], trips: Mapping[str, int | None]) -> Iterator[Touch]:
    for node in nodes:
        if isinstance(node, Instruction):
            yield from touches_of(node, trips)
        else:
            own = {node.variable: node.most_trips} if isinstance(node, Loop) else {}
            yield from _touches(children(node), {**trips, **own})


def touches_of(instruction: Instruction, trips: Mapping[str, int | None]) -> Iterator[Touch]:
    """The touches of HBM by an instruction in loops of so many trips."""
    for use in instruction.uses():
        if isinstance(use.operand, Access) and use.operand.memory is Memory.HBM:
            yield _touch(use, use.operand, trips)


def _touch(use: Use, access: Access, trips: Mapping[str, int | None]) -> Touch:
    touched = footprint(access, trips)
    is_known = touched.is_known and access.buffer.slots == 1
    elements = touched.elements if is_known else None
    is_exact = is_known and use.field != _INDIRECT
    return Touch(access.buffer, use.role.is_write, elements, is_exact)


def conflicts(first: Sequence[Touch], second: Sequence[Touch], same: Same) -> bool | None:
    """Whether both touch the same element and one of them writes it; None if unknown."""
    unsure = False
    pairs = 0
    for a in first:
        for b in second:
            if not (a.is_write or b.is_write):
                continue
            is_conflict = _meet(a, b, same)
            pairs += 1
            if is_conflict or pairs > _MOST_PAIRS:
                return True if is_conflict else None
            unsure = unsure or is_conflict is None
    return None if unsure else False


def _meet(a: Touch, b: Touch, same: Same) -> bool | None:
    if a.buffer.name != b.buffer.name:
        begins = same(a.buffer, b.buffer)
        if not begins:
            return begins
        if a.buffer.dtype.storage_bits != b.buffer.dtype.storage_bits:
            return None
    if a.elements is None or b.elements is None:
        return None
    met = a.elements.meets(b.elements)
    return None if met and not (a.is_exact and b.is_exact) else met
