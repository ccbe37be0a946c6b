"""Nodes without instructions that fill tiles for nobody, such as sums that another core wants."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import leaves


def without_unread_tiles(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes, but instructions whose results are tiles that reach neither HBM nor a register.

    What an instruction adds to its own result does not count as read.
    """
    wanted = _wanted_tiles(nodes)
    return (kept for node in nodes if (kept := _without(node, wanted)) is not None)


def _wanted_tiles(nodes: Sequence[Node]) -> set[str]:
    """Names of the tiles that something else depends on."""
    writers: defaultdict[str, list[Instruction]] = defaultdict(list)
    todo: list[Instruction] = []
    for instruction in leaves(nodes):
        written = list(instruction.writes())
        tiles = _names(written)
        if len(tiles) < len(written) or not tiles:
            todo.append(instruction)
        for name in tiles:
            writers[name].append(instruction)
    wanted: set[str] = set()
    while todo:
        new = _names(todo.pop().reads()) - wanted
        wanted |= new
        for name in new:
            todo += writers[name]
    return wanted


def _is_wanted(instruction: Instruction, wanted: set[str]) -> bool:
    """Whether an instruction writes anything but tiles, or one of the wanted tiles."""
    written = list(instruction.writes())
    tiles = _names(written)
    return len(tiles) < len(written) or not tiles or not tiles.isdisjoint(wanted)


def _names(operands: Iterable[object]) -> set[str]:
    return {o.buffer.name for o in operands if isinstance(o, Access) and o.buffer.on_chip}


def _without(node: Node, wanted: set[str]) -> Node | None:
    if isinstance(node, Instruction):
        return node if _is_wanted(node, wanted) else None
    if not isinstance(node, Loop):
        return node
    body = tuple(kept for inner in node.body if (kept := _without(inner, wanted)) is not None)
    if body == node.body:
        return node
    return dataclasses.replace(node, body=body) if body else None
