"""Whether unordered instructions touch the same elements of HBM, at least one of them writing."""

from __future__ import annotations

import itertools
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


@dataclass(frozen=True, slots=True)
class Touched:
    """Touches of one buffer, those that read and those that write."""

    buffer: Buffer
    read: list[Touch]
    written: list[Touch]


def by_buffer(touches: Iterable[Touch]) -> list[Touched]:
    """The buffers that are touched, each once, for comparisons with many others."""
    touched: dict[str, Touched] = {}
    for touch in touches:
        name = touch.buffer.name
        if name not in touched:
            touched[name] = Touched(touch.buffer, [], [])
        (touched[name].written if touch.is_write else touched[name].read).append(touch)
    return list(touched.values())


def conflicts(first: Iterable[Touch], second: Iterable[Touch], same: Same) -> bool | None:
    """Whether two sets of touches share an element that one writes; None if unknown."""
    return meet(by_buffer(first), by_buffer(second), same)


def meet(first: Iterable[Touched], second: Sequence[Touched], same: Same) -> bool | None:
    """Whether touches by buffer conflict as `conflicts` says; None if unknown."""
    unsure, pairs = False, 0
    for mine, theirs in itertools.product(first, second):
        if not (mine.written or theirs.written):
            continue
        begins = mine.buffer.name == theirs.buffer.name or same(mine.buffer, theirs.buffer)
        unsure = unsure or begins is None
        if not begins:
            continue
        for a, b in _rivals(mine, theirs):
            is_conflict = _meet(a, b)
            pairs += 1
            if is_conflict or pairs > _MOST_PAIRS:
                return True if is_conflict else None
            unsure = unsure or is_conflict is None
    return None if unsure else False


def _rivals(mine: Touched, theirs: Touched) -> Iterator[tuple[Touch, Touch]]:
    """Pairs of touches of which one writes."""
    yield from itertools.product(mine.written, [*theirs.written, *theirs.read])
    yield from itertools.product(mine.read, theirs.written)


def _meet(a: Touch, b: Touch) -> bool | None:
    """Whether touches of buffers that begin at the same address meet."""
    is_one = a.buffer.name == b.buffer.name
    if not is_one and a.buffer.dtype.storage_bits != b.buffer.dtype.storage_bits:
        return None
    if a.elements is None or b.elements is None:
        return None
    met = a.elements.meets(b.elements)
    return None if met and not (a.is_exact and b.is_exact) else met
