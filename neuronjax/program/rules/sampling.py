"""A program's steps in order, with the first and last iteration of every loop.

The iterations in between are summarised by a `Passed` step after the first iteration. This detects
errors at the edges of loops and errors in every iteration, and never reports an error that occurs
in no iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.program.affine import Affine, Flag, Interval, flag_holds
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset
from neuronjax.program.program import Loop, Node, Program
from neuronjax.program.strided import strided
from neuronjax.program.walk import Place, children, control_register, within

Values = Mapping[str, int]


@dataclass(slots=True, eq=False)
class Executed:
    """An instruction at certain values of the enclosing loops' variables."""

    place: Place
    instruction: Instruction
    values: Values

    def holds(self, flag: Flag) -> bool:
        """Whether a flag is set; it counts as set in loops of unknown length."""
        try:
            return flag_holds(flag, self.values, self.place.trips)
        except KeyError:
            return True


@dataclass(frozen=True, slots=True)
class Decided:
    """A register decides the trips of a loop, or a condition."""

    place: Place
    register: Register


@dataclass(frozen=True, slots=True)
class Passed:
    """All iterations of a loop have run, or will have run by the time it matters."""

    values: Values
    inner: tuple[tuple[Place, Instruction], ...]


Step = Executed | Decided | Passed


def sampled(program: Program) -> Iterator[Step]:
    """The steps of all functions, once per function, and of the program."""
    for function in program.functions:
        yield from _sampled(function.body, Place(function.name, function=function), {})
    yield from _sampled(program.body, Place(program.name), {})


def _sampled(nodes: tuple[Node, ...], place: Place, values: Values) -> Iterator[Step]:
    for position, node in enumerate(nodes):
        node_place = within(place, node, position)
        if isinstance(node, Instruction):
            yield Executed(node_place, node, values)
            continue
        register = control_register(node)
        if register and isinstance(node, Loop):
            yield Decided(node_place, register)
        if isinstance(node, Loop):
            yield from _sampled(node.body, node_place, {**values, node.variable: 0})
            if node.most_trips != 1:
                yield Passed(values, tuple(_leaves(node.body, node_place)))
            if node.most_trips is not None and node.most_trips > 1:
                yield from _sampled(
                    node.body, node_place, {**values, node.variable: node.most_trips - 1}
                )
        else:
            yield from _sampled(children(node), node_place, values)
            if register:
                yield Decided(node_place, register)


def _leaves(nodes: tuple[Node, ...], place: Place) -> Iterator[tuple[Place, Instruction]]:
    for position, node in enumerate(nodes):
        node_place = within(place, node, position)
        if isinstance(node, Instruction):
            yield node_place, node
        else:
            yield from _leaves(children(node), node_place)


def extent(value: Affine, values: Values, trips: Values) -> Interval | None:
    """Least and greatest value with variables fixed to `values`, or else running over `trips`.

    None: the trips of a variable are unknown.
    """
    low = high = value.base
    for name, factor in value.terms:
        if name in values:
            reach = (factor * values[name],) * 2
        elif name in trips:
            reach = (0, factor * (trips[name] - 1))
        else:
            return None
        low, high = low + min(reach), high + max(reach)
    return Interval(low, high)


class Area(NamedTuple):
    """Partitions and elements of a slot, as inclusive intervals."""

    slot: int
    partitions: Interval
    elements: Interval

    def meets(self, other: Area) -> bool:
        """Whether the areas intersect."""
        return (
            self.slot == other.slot
            and _meet(self.partitions, other.partitions)
            and _meet(self.elements, other.elements)
        )


def _meet(a: Interval, b: Interval) -> bool:
    return a.low <= b.high and b.low <= a.high


def areas(
    access: Access, values: Values, trips: Values, runs: int
) -> tuple[bool, tuple[Area, ...]]:
    """The areas that an access touches, and whether they are exact.

    Inexact areas are larger: the hull of more than `runs` contiguous runs, of all iterations of
    loop variables without a value, or of all elements that a register may address.
    """
    if isinstance(access.offset, Affine) and not access.variables:
        steps = tuple([(dim.stride, dim.size) for dim in access.dims])
        slot, first = access.slot.base % access.buffer.slots, access.partition.base
        return _still(slot, first, access.partitions, access.offset.base, steps, runs)
    lanes = extent(access.partition, values, trips)
    start = (
        None if isinstance(access.offset, RegisterOffset) else extent(access.offset, values, trips)
    )
    if lanes is None or start is None:
        lanes = Interval(0, access.buffer.partitions - 1)
        spans: tuple[Interval, ...] = (Interval(0, access.buffer.elements - 1),)
        return False, _areas(access, values, trips, lanes, spans)
    walk = strided(0, ((dim.stride, dim.size) for dim in access.dims))
    contiguous = walk.runs(runs)
    exact = contiguous is not None and access.variables <= values.keys()
    lanes = Interval(lanes.low, lanes.high + access.partitions - 1)
    spans = tuple(
        Interval(start.low + low, start.high + high) for low, high in contiguous or (access.reach,)
    )
    return exact, _areas(access, values, trips, lanes, spans)


def _areas(
    access: Access, values: Values, trips: Values, lanes: Interval, spans: tuple[Interval, ...]
) -> tuple[Area, ...]:
    slots = _slots(access, values, trips)
    return tuple(Area(slot, lanes, span) for slot in sorted(slots) for span in spans)


@functools.lru_cache(maxsize=1 << 14)
def _still(
    slot: int,
    first: int,
    partitions: int,
    start: int,
    steps: tuple[tuple[int, int], ...],
    most: int,
) -> tuple[bool, tuple[Area, ...]]:
    """The areas of an access that no loop moves."""
    walk = strided(start, steps)
    contiguous = walk.runs(most)
    lanes = Interval(first, first + partitions - 1)
    spans = (walk.hull,) if contiguous is None else contiguous
    return contiguous is not None, tuple(Area(slot, lanes, span) for span in spans)


def _slots(access: Access, values: Values, trips: Values) -> set[int]:
    """The slots that an access may refer to."""
    count = access.buffer.slots
    slots = {access.slot.base % count}
    for name, factor in access.slot.terms:
        steps = (values[name],) if name in values else range(min(count, trips.get(name, count)))
        slots = {(slot + factor * step) % count for slot in slots for step in steps}
    return slots


Key = tuple[int, str]
"""A kernel, or 0, and the name of a buffer."""


class Keys:
    """Distinguishes tiles of different kernels, even those of the same name."""

    def __init__(self) -> None:
        self._tiles: dict[int, dict[str, Buffer]] = {}

    def of(self, place: Place, buffer: Buffer) -> Key:
        kernel = place.kernel
        if kernel is None:
            return 0, buffer.name
        tiles = self._tiles.get(id(kernel))
        if tiles is None:
            tiles = self._tiles[id(kernel)] = {tile.name: tile for tile in kernel.buffers}
        tile = tiles.get(buffer.name)
        return id(kernel) if tile is buffer or tile == buffer else 0, buffer.name
