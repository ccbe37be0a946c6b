"""Queues of a kernel's transfers, which NKI leaves to the compiler.

A queue serves its transfers in order, and they begin some time apart. So those that an engine
starts take turns between four queues, loads between others than stores.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from neuronjax.lower.write.rebuild import rebuilt
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.program import Node

QUEUES = 4
"""Queues that take turns."""


def in_turn(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a kernel with transfers of the queues 0 and 1 on every other one in turn."""
    transfers: Counter[int] = Counter()

    def change(node: Node) -> Node | None:
        if not isinstance(node, DmaInstruction):
            return None
        turn = transfers[node.queue] % QUEUES
        transfers[node.queue] += 1
        return dataclasses.replace(node, queue=node.queue + 2 * turn) if turn else node

    return rebuilt(nodes, change)
