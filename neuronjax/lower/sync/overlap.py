"""Which buffers share memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np

from neuronjax.lower.sync.dependences import Overlap
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Call, Function, Node, Program
from neuronjax.program.walk import walk


class Overlaps:
    """Which buffers of a program share memory; what calls give to parameters is looked up once."""

    def __init__(self, program: Program) -> None:
        self._calls = _given(program)
        self._roots = {alias.buffer: alias.of for alias in program.aliases}

    def begin_together(self, overlap: Overlap) -> Overlap:
        """Whether two buffers begin at one place: aliases do, others must not meet at all.

        `overlap` says whether they do in the function that is looked at.
        """
        roots = self._roots

        def same(buffer: Buffer, other: Buffer) -> bool | None:
            if roots.get(buffer.name, buffer.name) == roots.get(other.name, other.name):
                return True
            return False if overlap(buffer, other) is False else None

        return same

    def within(self, function: Function | None) -> Overlap:
        """Whether two different buffers share memory, within `function` or outside of functions.

        True: their addresses overlap. None: some call gives both of them the same memory, or they
        are aliases without addresses. What different calls give does not meet: a kernel begins
        when the one before it is done.
        """
        calls = self._calls.get(function.name, []) if function is not None else []
        known = {parameter.name for parameter in function.parameters} if function else set()
        seen: dict[tuple[str, str], bool | None] = {}

        def by_calls(buffer: Buffer, other: Buffer) -> bool | None:
            pairs = ((call.get(buffer.name, buffer), call.get(other.name, other)) for call in calls)
            shared = any(a == b or _shared(a, b, self._roots) is not False for a, b in pairs)
            return None if shared else False

        def in_hbm(buffer: Buffer, other: Buffer) -> bool | None:
            left, right = (spans(side) for side in (buffer, other))
            if left is None or right is None:
                return by_calls(buffer, other)
            meets = (left[0] < right[1]) & (right[0] < left[1])
            return None if meets.any() else False

        @functools.cache
        def spans(buffer: Buffer) -> tuple[np.ndarray, np.ndarray] | None:
            """First byte, and end, of what each call gives; None: not all have addresses."""
            given = [call.get(buffer.name, buffer) for call in calls]
            starts = [b.address for b in given if b.address is not None]
            if len(starts) != len(given):
                return None
            ends = [start + b.extent for start, b in zip(starts, given, strict=True)]
            return np.array(starts, np.int64), np.array(ends, np.int64)

        def overlap(buffer: Buffer, other: Buffer) -> bool | None:
            if buffer.memory is not other.memory:
                return False
            if buffer.name not in known and other.name not in known:
                return _shared(buffer, other, self._roots)
            if buffer.on_chip or other.on_chip:
                return by_calls(buffer, other)
            key = (buffer.name, other.name)
            if key not in seen:
                seen[key] = in_hbm(buffer, other)
            return seen[key]

        return overlap


def _shared(buffer: Buffer, other: Buffer, roots: Mapping[str, str]) -> bool | None:
    if buffer.address is None or other.address is None:
        alike = roots.get(buffer.name, buffer.name) == roots.get(other.name, other.name)
        return None if alike else False
    return (
        buffer.address < other.address + other.extent
        and other.address < buffer.address + buffer.extent
        and (
            not buffer.on_chip
            or (
                buffer.partition < other.partition + other.partitions
                and other.partition < buffer.partition + buffer.partitions
            )
        )
    )


def _given(program: Program) -> dict[str, list[dict[str, Buffer]]]:
    """Function -> what each call of it gives for its parameters: buffers of the program.

    A call within a function counts once for each call of that function.
    """
    given: dict[str, list[dict[str, Buffer]]] = {
        function.name: [] for function in program.functions
    }
    parameters = {function.name: function.parameters for function in program.functions}
    for owner, call in reversed(list(_calls(program))):
        for outer in given.get(owner, [{}]):
            pairs = zip(parameters[call.function], call.arguments, strict=True)
            given[call.function].append({p.name: outer.get(b.name, b) for p, b in pairs})
    return given


def _calls(program: Program) -> Iterator[tuple[str, Call]]:
    """Calls, with the function that they are in or an empty name; callees before callers."""
    node: Node
    for place, node in walk(program):
        if isinstance(node, Call):
            yield (place.function.name if place.function else ""), node
