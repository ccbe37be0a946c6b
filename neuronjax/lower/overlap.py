"""Which buffers share memory."""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.lower.dependences import Overlap
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Call, Function, Node, Program
from neuronjax.program.walk import walk


def overlaps(program: Program, function: Function | None) -> Overlap:
    """Whether two different buffers share memory, within `function` or outside of functions.

    True: their addresses overlap. None: some call gives a parameter memory of the other, or they
    are aliases without addresses.
    """
    known = _parameters(program).get(function.name, {}) if function is not None else {}
    aliases = {frozenset((alias.buffer, alias.of)) for alias in program.aliases}

    def overlap(one: Buffer, other: Buffer) -> bool | None:
        if one.memory is not other.memory:
            return False
        if one.name not in known and other.name not in known:
            return _shared(one, other, aliases)
        for left in known.get(one.name, {one.name: one}).values():
            for right in known.get(other.name, {other.name: other}).values():
                if left == right or _shared(left, right, aliases) is not False:
                    return None
        return False

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


def _parameters(program: Program) -> dict[str, dict[str, dict[str, Buffer]]]:
    """Function -> parameter -> all buffers of the program that calls give for it."""
    found: dict[str, dict[str, dict[str, Buffer]]] = {
        function.name: {parameter.name: {} for parameter in function.parameters}
        for function in program.functions
    }
    parameters = {function.name: function.parameters for function in program.functions}
    for owner, call in reversed(list(_calls(program))):
        for parameter, buffer in zip(parameters[call.function], call.arguments, strict=True):
            given = found.get(owner, {}).get(buffer.name, {buffer.name: buffer})
            found[call.function][parameter.name].update(given)
    return found


def _calls(program: Program) -> Iterator[tuple[str, Call]]:
    """Calls, with the function that they are in or an empty name; callees before callers."""
    node: Node
    for place, node in walk(program):
        if isinstance(node, Call):
            yield (place.function.name if place.function else ""), node
