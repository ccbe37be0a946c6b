"""The values that a tile holds one after the other, each in a tile of its own.

A tile that is filled, read, filled again and read makes the second value wait for the readers of
the first. Where what is read has been written since, the values have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.memory.coverage import Filled, filled, touched
from neuronjax.program.affine import First
from neuronjax.program.instruction import Instruction, Use
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import children

Trips = Mapping[str, int | None]


@dataclass(slots=True)
class Web:
    """One value of a tile: the nodes that use it, in order, and the slot where it lies.

    `slot` is the slot's number less what loops add to it; None: all slots belong to the value.
    """

    tile: Buffer
    slot: int | None
    nodes: list[int] = field(default_factory=list)


def webs(nodes: Sequence[Node], tiles: Mapping[str, Buffer]) -> list[Web]:
    """The values of tiles that only these nodes use, and of which none is wanted afterwards."""
    uses: dict[str, list[tuple[int, Use, dict[str, int | None]]]] = {}
    for index, node in enumerate(nodes):
        for use, trips in _uses(node, {}):
            access = use.operand
            if isinstance(access, Access) and access.buffer.name in tiles:
                uses.setdefault(access.buffer.name, []).append((index, use, trips))
    return [web for name, own in uses.items() for web in _webs(tiles[name], own)]


_Uses = list[tuple[int, Use, dict[str, int | None]]]


def slot_of(access: Access) -> int:
    """The slot of an access less what loops add to it."""
    return access.slot.base % access.buffer.slots


def _webs(tile: Buffer, uses: _Uses) -> Iterator[Web]:
    by_slot = _by_slot(tile, uses)
    if by_slot is None:
        yield Web(tile, None, _nodes(uses))
        return
    for slot, own in by_slot.items():
        for value in _values(own):
            yield Web(tile, slot, _nodes(value))


def _nodes(uses: _Uses) -> list[int]:
    return list(dict.fromkeys(index for index, _, _ in uses))


def _by_slot(tile: Buffer, uses: _Uses) -> dict[int, _Uses] | None:
    """Uses by slot; None: loops within nodes go through slots, or they differ in how."""
    by_slot: dict[int, _Uses] = {}
    terms = {_access(use).slot.terms for _, use, _ in uses}
    inner = {name for _, _, trips in uses for name in trips}
    if len(terms) > 1 or any(name in inner for name, _ in next(iter(terms))):
        return None
    for use in uses:
        by_slot.setdefault(slot_of(_access(use[1])), []).append(use)
    return by_slot


def _values(uses: _Uses) -> list[_Uses]:
    """Uses of one value after the other."""
    parts: list[_Uses] = []
    was_read = True
    for entry in uses:
        index, use, trips = entry
        is_new = not parts or parts[-1][-1][0] != index
        if is_new and was_read and _begins(use, trips):
            parts.append([])
            was_read = False
        if not parts:
            parts.append([])
        parts[-1].append(entry)
        was_read = was_read or use.role is not use.role.WRITE
    values: list[_Uses] = []
    for part in parts:
        values.append(part)
        while len(values) > 1 and not _is_complete(values[-1]):
            last = values.pop()
            values[-1] += last
    return values


def _is_complete(uses: _Uses) -> bool:
    """Whether all that is read has been written before."""
    written, near = Filled(), _Near()
    for index, use, trips in uses:
        near.enter(index, trips, written)
        access = _access(use)
        is_known = _begins(use, trips) or near.has(access)
        if not is_known and not written.has(touched(access, trips)):
            return False
        if use.role.is_write:
            near.writes.append(access)
    return True


@dataclass(slots=True)
class _Near:
    """Writes of the node that is looked at: only the same elements are sure to be written."""

    index: int = -1
    trips: Trips = field(default_factory=dict)
    writes: list[Access] = field(default_factory=list)
    all_writes: list[tuple[Access, Trips]] = field(default_factory=list)

    def enter(self, index: int, trips: Trips, written: Filled) -> None:
        """Goes on to another use; what the node before wrote is `written` then."""
        self.all_writes += [(access, self.trips) for access in self.writes]
        self.writes = self.writes if index == self.index and trips is self.trips else []
        if index != self.index:
            for access, inner in self.all_writes:
                written.add(filled(access, inner))
            self.all_writes = []
        self.index, self.trips = index, trips

    def has(self, access: Access) -> bool:
        """Whether just these elements have been written in the same iteration."""
        return any(_walk(access) == _walk(write) for write in self.writes)


def _walk(access: Access) -> tuple[object, ...]:
    return access.slot, access.partition, access.partitions, access.offset, access.dims


def _begins(use: Use, inner: Trips) -> bool:
    """Whether a use overwrites, at least in the first iteration of the loops within its node."""
    if not use.role.is_read:
        return True
    return isinstance(use.unless, First) and set(use.unless.variables) <= set(inner)


def _access(use: Use) -> Access:
    assert isinstance(use.operand, Access)
    return use.operand


def _uses(node: Node, trips: dict[str, int | None]) -> Iterator[tuple[Use, dict[str, int | None]]]:
    """Uses below a node in order, reads of an instruction first, and the loops about them."""
    if isinstance(node, Instruction):
        for use in sorted(node.uses(), key=lambda use: not use.role.is_read):
            yield use, trips
        return
    inner = {**trips, node.variable: node.most_trips} if isinstance(node, Loop) else trips
    for child in children(node):
        yield from _uses(child, inner)
