"""The widening of narrow values to FP32, in the group that reads them.

Engines widen what they read, so a conversion costs nothing there, and memory holds the narrow
value. A group that makes the narrow value has taken the conversion in; it goes to its reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.group.fuse import Fusion, Group, through
from neuronjax.lower.operations import Map, is_widening, peel, root_of


def widened_late(groups: Sequence[Group], fusion: Fusion, graph: Graph) -> list[Group]:
    """The groups, of which those that read a widened value alone widen it themselves."""
    readers = _readers(groups, graph)
    for group in groups:
        for op in reversed(group.operations):
            if is_widening(op) and group.inner is None:
                (reader,) = readers[op.result] if len(readers[op.result]) == 1 else (None,)
                if reader is not None and reader is not group and _may_widen(reader, op):
                    _hand_on(fusion, group, reader, op)
    return [group for group in groups if group.operations]


def _readers(groups: Sequence[Group], graph: Graph) -> defaultdict[Value, set[Group | None]]:
    """Value -> the groups that read it, through views too; None: it is needed as it is."""
    readers: defaultdict[Value, set[Group | None]] = defaultdict(set)
    for group in groups:
        for op in group.operations:
            for operand in op.operands:
                readers[root_of(operand)].add(group)
            for region in op.regions:
                for value in region.captured():
                    readers[root_of(value)].add(None)
    for value in graph.results:
        readers[root_of(value)].add(None)
    return readers


def _ways(group: Group, value: Value) -> list[Map]:
    return [way for operand, way in group.inputs if operand is value]


def _may_widen(reader: Group, op: Op) -> bool:
    """Whether a group reads a value element by element, all of it in one way."""
    if reader.domain is None or reader.inner is not None or reader.other is not None:
        return False
    users = _users(reader, op.result)
    if not reader.takes_reductions and 0 in users:
        return False
    seen = (
        peel(operand)[0]
        for index in users
        for operand in reader.operations[index].operands
        if root_of(operand) is op.result
    )
    return all(base is op.result for base in seen) and len(_ways(reader, op.result)) == 1


def _users(group: Group, value: Value) -> list[int]:
    return [
        index
        for index, op in enumerate(group.operations)
        if any(root_of(operand) is value for operand in op.operands)
    ]


def _hand_on(fusion: Fusion, group: Group, reader: Group, op: Op) -> None:
    (way,) = _ways(reader, op.result)
    base, relation = peel(op.operands[0])
    reader.operations.insert(_users(reader, op.result)[0], op)
    del reader.inputs[op.result, way]
    reader.inputs[base, through(relation, way, base)] = None
    reader.maps[op.result] = way
    fusion.of[op.result] = reader
    group.operations.remove(op)
    del group.maps[op.result]
