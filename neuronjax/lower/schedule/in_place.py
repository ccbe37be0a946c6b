"""Results in the place of operands, where tiles are short of memory.

An engine that goes through its operands element by element may write each result where it has just
read: a chain of such instructions needs one tile instead of one for each of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronjax.lower.write.rebuild import with_tiles
from neuronjax.program.instruction import Instruction, Role
from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.program.program import Node
from neuronjax.program.scalar_engine import Activate, Activate2, ActivateReduce
from neuronjax.program.vector_engine import (
    Exponential,
    Reciprocal,
    ScalarTensorTensor,
    SelectReduce,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)
from neuronjax.program.walk import leaves

_ELEMENTWISE = (
    Activate,
    Activate2,
    ActivateReduce,
    Exponential,
    Reciprocal,
    ScalarTensorTensor,
    SelectReduce,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)


def in_place(
    nodes: tuple[Node, ...], tiles: Mapping[str, Buffer]
) -> tuple[tuple[Node, ...], dict[str, Buffer]]:
    """Nodes that write into tiles of which they are the last to read, and the tiles that are left.

    Nobody else uses the `tiles`, which hold nothing before or after the nodes.
    """
    first, last = _spans(nodes, tiles)
    places: dict[str, Buffer] = {}
    for index, node in enumerate(nodes):
        if not isinstance(node, _ELEMENTWISE):
            continue
        new = node.dst
        if first.get(new.buffer.name) != index or new.buffer.name in places:
            continue
        ending = (read for read in _reads(node) if last.get(read.buffer.name) == index)
        old = next((read for read in ending if _is_alike(read, new)), None)
        if old is not None and _goes_along(node, old):
            places[new.buffer.name] = places.get(old.buffer.name, old.buffer)
    left = {name: tile for name, tile in tiles.items() if name not in places}
    return with_tiles(nodes, places), left


def _spans(
    nodes: Sequence[Node], tiles: Mapping[str, Buffer]
) -> tuple[dict[str, int], dict[str, int]]:
    """The first and the last node that uses each tile."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for leaf in leaves((node,)):
            for access in leaf.accesses():
                if access.buffer.name in tiles:
                    first.setdefault(access.buffer.name, index)
                    last[access.buffer.name] = index
    return first, last


def _reads(node: Instruction) -> list[Access]:
    return [
        use.operand
        for use in node.uses()
        if use.role is Role.READ and isinstance(use.operand, Access)
    ]


def _is_alike(old: Access, new: Access) -> bool:
    """Whether two tiles in SBUF could be one, and these elements of them the same."""
    ours, theirs = old.buffer, new.buffer
    return (
        ours.memory is Memory.SBUF
        and theirs.memory is Memory.SBUF
        and (ours.dtype, ours.shape, ours.partition, ours.slots)
        == (theirs.dtype, theirs.shape, theirs.partition, theirs.slots)
        and old.walk == new.walk
    )


def _goes_along(node: Instruction, old: Access) -> bool:
    """Whether whatever an instruction reads and writes of a tile is these elements."""
    of_tile = [access for access in node.accesses() if access.buffer.name == old.buffer.name]
    return all(access.walk == old.walk for access in of_tile)
