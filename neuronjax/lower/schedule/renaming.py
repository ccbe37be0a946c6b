"""Nodes on new tiles: one for each value that a tile holds, two where iterations would wait."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.lower.schedule.webs import slot_of, webs
from neuronjax.lower.write.rebuild import mapped
from neuronjax.program.affine import ZERO, Affine, affine
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.program import Node
from neuronjax.program.records import altered

Key = tuple[str, int | None]
"""A tile and one of its slots; None: all of them."""


@dataclass(slots=True)
class Renamed:
    """The nodes, tiles that are not used any more, new ones, and the nodes that use each tile.

    Tiles of PSUM in `users` have one value only, all others may have several.
    """

    nodes: tuple[Node, ...]
    gone: set[str] = field(default_factory=set)
    new: dict[str, Buffer] = field(default_factory=dict)
    users: dict[str, set[int]] = field(default_factory=dict)


def renamed(
    nodes: Sequence[Node], tiles: Mapping[str, Buffer], variable: str | None, slots: int
) -> Renamed:
    """Nodes in which every value of the `tiles` has a tile of its own.

    Nobody else uses the tiles. Values in SBUF get `slots` that the loop `variable` goes through, so
    that the next iteration need not wait for this one; None: there is no loop.
    """
    known_webs = webs(nodes, tiles)
    result = Renamed(tuple(nodes))
    places: list[dict[Key, tuple[Buffer, Affine]]] = [{} for _ in nodes]
    values = Counter((web.tile.name, web.slot) for web in known_webs)
    several = {name for (name, _), count in values.items() if count > 1}
    numbers: Counter[str] = Counter()
    for web in known_webs:
        tile = web.tile
        is_waited_for = variable is not None and not _is_in_order(nodes, web.nodes)
        count = slots if is_waited_for and tile.memory is Memory.SBUF else 1
        is_split = web.slot is not None and (
            tile.name in several
            or (tile.slots < count if tile.memory is Memory.SBUF else tile.slots > 1)
        )
        if not is_split:
            result.users.setdefault(tile.name, set()).update(web.nodes)
            continue
        name = f"{tile.name}_{numbers[tile.name]}"
        numbers[tile.name] += 1
        result.gone.add(tile.name)
        result.new[name] = dataclasses.replace(tile, name=name, slots=count)
        result.users[name] = set(web.nodes)
        slot = affine(0, **{variable: 1}) if variable is not None and count > 1 else ZERO
        for node in web.nodes:
            places[node][tile.name, web.slot] = (result.new[name], slot)
    result.nodes = tuple(map(_on, nodes, places))
    return result


def _is_in_order(nodes: Sequence[Node], users: Sequence[int]) -> bool:
    """Whether the users of a tile run one after the other anyway: on one engine."""
    leaves = [node for node in (nodes[index] for index in users) if isinstance(node, Instruction)]
    if len(leaves) < len(users) or any(isinstance(leaf, DmaInstruction) for leaf in leaves):
        return False
    return len({leaf.engine for leaf in leaves}) == 1


def _on(node: Node, places: Mapping[Key, tuple[Buffer, Affine]]) -> Node:
    """A node on other tiles."""
    if not places:
        return node

    def operand(old: Any) -> Any:
        if not isinstance(old, Access):
            return old
        new = places.get((old.buffer.name, slot_of(old)))
        return old if new is None else altered(old, buffer=new[0], slot=new[1])

    def change(node: Instruction) -> Instruction:
        if all(operand(access) is access for access in node.accesses()):
            return node
        return node.with_operands(operand)

    return mapped((node,), Instruction, change)[0]
