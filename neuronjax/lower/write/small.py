"""Which kernels are so small that what is around them costs as much as they do."""

from __future__ import annotations

from collections.abc import Iterable

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.control import Host
from neuronjax.program.dma import SendReceive
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node

_ALONE = (CollectiveInstruction, Host, SendReceive, CoreBarrier)
"""What concerns other cores, or the host, is a kernel of its own."""


def is_small(nodes: Iterable[Node], most: int) -> bool:
    """Whether a kernel of these nodes, which runs so many instructions at most, may be joined with
    others."""
    return _runs(nodes, 1, most) is not None


def _runs(nodes: Iterable[Node], times: int, most: int) -> int | None:
    """Runs of instructions; None: too many, or what must not be joined."""
    total = 0
    for node in nodes:
        if isinstance(node, Instruction):
            if isinstance(node, _ALONE):
                return None
            total += times
        elif isinstance(node, Loop) and isinstance(node.trips, int):
            inner = _runs(node.body, times * node.trips, most)
            if inner is None:
                return None
            total += inner
        else:
            return None
        if total > most:
            return None
    return total
