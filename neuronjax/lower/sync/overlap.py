"""Which buffers share memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from neuronjax.lower.sync.dependences import Overlap
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Call, Function, Node, Program
from neuronjax.program.walk import walk


class Overlaps:
    """Which buffers of a program share memory; what calls give to parameters is looked up once."""

    def __init__(self, program: Program) -> None:
        self._calls = _given(program)
        self._aliases = {frozenset((alias.buffer, alias.of)) for alias in program.aliases}

    def within(self, function: Function | None) -> Overlap:
        """Whether two different buffers share memory, within `function` or outside of functions.

        True: their addresses overlap. None: some call gives both of them the same memory, or they
        are aliases without addresses. What different calls give does not meet: a kernel begins
        when the one before it is done.
        """
        calls = self._calls.get(function.name, []) if function is not None else []
        known = {parameter.name for parameter in function.parameters} if function else set()
        seen: dict[tuple[str, str], bool | None] = {}

        def found(one: Buffer, other: Buffer) -> bool | None:
            pairs = ((each.get(one.name, one), each.get(other.name, other)) for each in calls)
            shared = any(a == b or _shared(a, b, self._aliases) is not False for a, b in pairs)
            return None if shared else False

        def in_hbm(one: Buffer, other: Buffer) -> bool | None:
            left, right = (spans(each) for each in (one, other))
            if left is None or right is None:
                return found(one, other)
            meets = (left[0] < right[1]) & (right[0] < left[1])
            return None if meets.any() else False

        @functools.cache
        def spans(each: Buffer) -> tuple[np.ndarray, np.ndarray] | None:
            """First byte, and end, of what each call gives; None: not all have addresses."""
            given = [call.get(each.name, each) for call in calls]
            starts = [buffer.address for buffer in given if buffer.address is not None]
            if len(starts) != len(given):
                return None
            ends = [start + b.extent for start, b in zip(starts, given, strict=True)]
            return np.array(starts, np.int64), np.array(ends, np.int64)

        def overlap(one: Buffer, other: Buffer) -> bool | None:
            if one.memory is not other.memory:
                return False
            if one.name not in known and other.name not in known:
                return _shared(one, other, self._aliases)
            if one.on_chip or other.on_chip:
                return found(one, other)
            key = (one.name, other.name)
            if key not in seen:
                seen[key] = in_hbm(one, other)
            return seen[key]

        return overlap


def _shared(one: Buffer, other: Buffer, aliases: set[frozenset[str]]) -> bool | None:
    if one.address is None or other.address is None:
        return None if frozenset((one.name, other.name)) in aliases else False
    return (
        one.address < other.address + other.extent
        and other.address < one.address + one.extent
        and (
            not one.on_chip
            or (
                one.partition < other.partition + other.partitions
                and other.partition < one.partition + one.partitions
            )
        )
    )


def _given(program: Program) -> dict[str, list[dict[str, Buffer]]]:
    """Function -> what each call of it gives for its parameters: buffers of the program.

    A call within a function counts once for each call of that function.
    """
    found: dict[str, list[dict[str, Buffer]]] = {each.name: [] for each in program.functions}
    parameters = {each.name: each.parameters for each in program.functions}
    for owner, call in reversed(list(_calls(program))):
        for outer in found.get(owner, [{}]):
            pairs = zip(parameters[call.function], call.arguments, strict=True)
            found[call.function].append({p.name: outer.get(b.name, b) for p, b in pairs})
    return found


def _calls(program: Program) -> Iterator[tuple[str, Call]]:
    """Calls, with the function that they are in or an empty name; callees before callers."""
    node: Node
    for place, node in walk(program):
        if isinstance(node, Call):
            yield (place.function.name if place.function else ""), node
