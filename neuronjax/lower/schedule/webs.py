"""The values that a tile holds one after the other, each in a tile of its own.

A tile that is filled, read, filled again and read makes the second value wait for the readers of
the first. Where what is read has been written since, the values have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.memory.coverage import Coverage
from neuronjax.lower.memory.lifetimes import Touch, begins, reads_unwritten, touches
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import Node
from neuronjax.program.walk import leaves


@dataclass(slots=True)
class Web:
    """A value of a tile: the nodes that use it, in order, and the slot where it lies.

    `slot` is the slot's number less what loops add to it; None: all slots belong to the value.
    """

    tile: Buffer
    slot: int | None
    nodes: list[int] = field(default_factory=list)


def webs(nodes: Sequence[Node], tiles: Mapping[str, Buffer]) -> list[Web]:
    """The values of tiles that only these nodes use, and of which none is wanted afterwards."""
    numbers = [index for index, node in enumerate(nodes) for _ in leaves((node,))]
    coverage = Coverage()
    return [
        web
        for tile, uses in touches(tuple(nodes), tiles.values()).items()
        for web in _webs(tile, [(numbers[touch.position], touch) for touch in uses], coverage)
    ]


_Uses = list[tuple[int, Touch]]


def slot_of(access: Access) -> int:
    """The slot of an access less what loops add to it."""
    return access.slot.base % access.buffer.slots


def _webs(tile: Buffer, uses: _Uses, coverage: Coverage) -> Iterator[Web]:
    by_slot = _by_slot(uses)
    if by_slot is None:
        yield Web(tile, None, _nodes(uses))
        return
    for slot, own in by_slot.items():
        for value in _values(own, coverage):
            yield Web(tile, slot, _nodes(value))


def _nodes(uses: _Uses) -> list[int]:
    return list(dict.fromkeys(index for index, _ in uses))


def _by_slot(uses: _Uses) -> dict[int, _Uses] | None:
    """Uses by slot; None: loops within nodes go through slots, or they differ in how."""
    by_slot: dict[int, _Uses] = {}
    terms = {touch.access.slot.terms for _, touch in uses}
    inner = {cycle.variable for _, touch in uses for cycle in touch.cycles}
    if len(terms) > 1 or any(name in inner for name, _ in next(iter(terms))):
        return None
    for use in uses:
        by_slot.setdefault(slot_of(use[1].access), []).append(use)
    return by_slot


def _values(uses: _Uses, coverage: Coverage) -> list[_Uses]:
    """Uses of one value after the other."""
    parts: list[_Uses] = []
    was_read = True
    for index, touch in uses:
        is_new = not parts or parts[-1][-1][0] != index
        if not parts or (is_new and was_read and begins(touch, 0)):
            parts.append([])
            was_read = False
        parts[-1].append((index, touch))
        was_read = was_read or touch.use.role is not touch.use.role.WRITE
    values: list[_Uses] = []
    for part in parts:
        values.append(part)
        while len(values) > 1 and reads_unwritten([touch for _, touch in values[-1]], 0, coverage):
            last = values.pop()
            values[-1] += last
    return values
