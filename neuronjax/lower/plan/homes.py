"""Values that take the place of others: what a loop carries, and results in donated arguments.

A result is made where its predecessor lies if that is read no more by then: by earlier groups, or
by the chain that makes the result, which reads an element before it writes the one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain.boxes import is_resident
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import is_elementwise, is_row_reduction, root_of
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View
from neuronjax.program.operand import Buffer

IN_PLACE = frozenset({"dynamic_update_slice", "counted_update_slice", "scatter", "while"})
"""Operations that make results in the memory of as many operands, the first ones."""
_DENSE = frozenset({"reshape", "optimization_barrier"})
"""Views that keep elements in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """The home that `result` is wanted in: the place of `parameter`, which lies there at first."""

    parameter: Value
    result: Value
    place: View


def settled(
    homes: Sequence[Home], graph: Graph, groups: Fusion, last_use: Mapping[Value, float]
) -> dict[Value, Buffer]:
    """Values that may be made at home, and the buffers there."""
    buffers: dict[Value, Buffer] = {}
    updated = {root_of(value) for op in graph.operations for value in overwritten(op)}
    for home in homes:
        root = _root(home.result)
        group = None if root is None else groups.of.get(root)
        if root is None or group is None or home.parameter in updated:
            continue
        if graph.results.count(home.result) > 1 or not home.place.is_dense or root in buffers:
            continue
        last = last_use.get(home.parameter, -1)
        if last < group.number or (
            last == group.number and _keeps_step(group, home.parameter, root, groups.tuning)
        ):
            buffers[root] = home.place.buffer
    return buffers


def overwritten(op: Op) -> tuple[Value, ...]:
    """Operands in whose memory an operation would make its results."""
    return op.operands[: len(op.results)] if op.name in IN_PLACE else ()


def _root(value: Value) -> Value | None:
    """The value whose elements a value has, in the same order; None: in another one."""
    root = value
    while root.producer is not None and root.producer.name in _DENSE:
        root = root.producer.operands[root.producer.results.index(root)]
    return root if root is root_of(value) else None


def _keeps_step(group: Group, parameter: Value, result: Value, tuning: Tuning) -> bool:
    """Whether a chain reads each element of `parameter` just where it makes that of `result`."""
    if group.domain is None or result not in group.maps:
        return False
    ways = [way for value, way in group.inputs if root_of(value) is parameter]
    bases = [value for value, _ in group.inputs if root_of(value) is parameter]
    if any(base is not parameter for base in bases) or any(
        way != group.maps[result] for way in ways
    ):
        return False
    whole = (op for op in group.operations if not (is_elementwise(op) or is_row_reduction(op)))
    if not ways or any(root_of(value) is parameter for op in whole for value in op.operands):
        return False
    row = 1
    for axis in group.reduced:
        row *= group.domain[axis]
    return not group.reduced or is_resident(row, tuning.held_bytes, tuning)
