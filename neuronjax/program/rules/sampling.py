"""A program in its order, with the first and the last iteration of every loop.

What is written in the iterations between is told as a whole: `Passed` stands after the first
iteration of a loop, for all of them. That is enough to find what is wrong at the edges of loops,
and never calls right what happens in every iteration, nor wrong what happens in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.program.affine import Affine, Flag, Interval, flag_holds
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset
from neuronjax.program.program import Loop, Node, Program
from neuronjax.program.walk import Place, children, control_register, within

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Executed:
    """An instruction at some values of the loop variables about it."""

    place: Place
    instruction: Instruction
    values: Values

    def holds(self, flag: Flag) -> bool:
        """Whether a flag is set; so it is where nobody knows how often a loop runs."""
        try:
            return flag_holds(flag, self.values, self.place.trips)
        except KeyError:
            return True


@dataclass(frozen=True, slots=True)
class Decided:
    """A register decides about a loop, a condition, or another round."""

    place: Place
    register: Register


@dataclass(frozen=True, slots=True)
class Passed:
    """Here all iterations of a loop have run, or will have when it matters."""

    values: Values
    inner: tuple[tuple[Place, Instruction], ...]


Step = Executed | Decided | Passed


def sampled(program: Program) -> Iterator[Step]:
    """The steps of all functions, each once, and of the program."""
    for function in program.functions:
        yield from _sampled(function.body, Place(function.name, function=function), {})
    yield from _sampled(program.body, Place(program.name), {})


def _sampled(nodes: tuple[Node, ...], place: Place, values: Values) -> Iterator[Step]:
    for position, node in enumerate(nodes):
        here = within(place, node, position)
        if isinstance(node, Instruction):
            yield Executed(here, node, values)
            continue
        register = control_register(node)
        if register and isinstance(node, Loop):
            yield Decided(here, register)
        if isinstance(node, Loop):
            yield from _sampled(node.body, here, {**values, node.variable: 0})
            if node.most_trips != 1:
                yield Passed(values, tuple(_leaves(node.body, here)))
            if node.most_trips is not None and node.most_trips > 1:
                yield from _sampled(node.body, here, {**values, node.variable: node.most_trips - 1})
        else:
            yield from _sampled(children(node), here, values)
            if register:
                yield Decided(here, register)


def _leaves(nodes: tuple[Node, ...], place: Place) -> Iterator[tuple[Place, Instruction]]:
    for position, node in enumerate(nodes):
        here = within(place, node, position)
        if isinstance(node, Instruction):
            yield here, node
        else:
            yield from _leaves(children(node), here)


def extent(value: Affine, values: Values, trips: Values) -> Interval | None:
    """Least and greatest value: variables of `values` stand still, the others run over trips.

    None: nobody knows how far one runs.
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


@dataclass(frozen=True, slots=True)
class Area:
    """Partitions and elements of one slot; both ends are included."""

    slot: int
    partitions: Interval
    elements: Interval

    def meets(self, other: Area) -> bool:
        """Whether they have something in common."""
        return (
            self.slot == other.slot
            and _meet(self.partitions, other.partitions)
            and _meet(self.elements, other.elements)
        )


def _meet(one: Interval, other: Interval) -> bool:
    return one.low <= other.high and other.low <= one.high


def areas(
    access: Access, values: Values, trips: Values, runs: int
) -> tuple[bool, tuple[Area, ...]]:
    """What an access touches, and whether it is just that.

    Else it is more: the hull of more than `runs` contiguous runs, of all that it touches while loop
    variables without a value run, or of all that a register may name.
    """
    lanes = extent(access.partition, values, trips)
    start = (
        None if isinstance(access.offset, RegisterOffset) else extent(access.offset, values, trips)
    )
    if lanes is None or start is None:
        lanes = Interval(0, access.buffer.partitions - 1)
        spans: tuple[Interval, ...] = (Interval(0, access.buffer.elements - 1),)
        return False, _areas(access, values, trips, lanes, spans)
    found = access.runs(runs)
    exact = found is not None and access.variables <= values.keys()
    lanes = Interval(lanes.low, lanes.high + access.partitions - 1)
    spans = tuple(
        Interval(start.low + low, start.high + high) for low, high in found or (access.reach,)
    )
    return exact, _areas(access, values, trips, lanes, spans)


def _areas(
    access: Access, values: Values, trips: Values, lanes: Interval, spans: tuple[Interval, ...]
) -> tuple[Area, ...]:
    slots = _slots(access, values, trips)
    return tuple(Area(slot, lanes, span) for slot in sorted(slots) for span in spans)


def _slots(access: Access, values: Values, trips: Values) -> set[int]:
    """Slots an access may be to."""
    count = access.buffer.slots
    found = {access.slot.base % count}
    for name, factor in access.slot.terms:
        steps = (values[name],) if name in values else range(min(count, trips.get(name, count)))
        found = {(slot + factor * step) % count for slot in found for step in steps}
    return found


def key(place: Place, buffer: Buffer) -> tuple[int, Buffer]:
    """What tells tiles of different kernels apart, whatever they are called."""
    local = place.kernel is not None and buffer in place.kernel.buffers
    return (id(place.kernel) if local else 0, buffer)
