"""The streams of a core: which instructions complete in order.

An engine runs its instructions in order. It only starts transfers and collectives: those of one
engine on one DMA queue, or on one stream of collectives, complete in order.
"""

from __future__ import annotations

from collections.abc import Iterable

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import children, control_register

HOST = "host"


def starting(instruction: Instruction) -> str:
    """The stream that an instruction begins in: its engine."""
    engine = instruction.engine
    return HOST if engine is None else engine.value


def completing(instruction: Instruction) -> str:
    """The stream that an instruction completes in."""
    starter = starting(instruction)
    if isinstance(instruction, DmaInstruction):
        return f"{starter}_queue{instruction.queue}"
    if isinstance(instruction, CollectiveInstruction):
        return f"{starter}_collectives{instruction.stream}"
    return starter


def is_static(nodes: Iterable[Node]) -> bool:
    """Whether no register decides what runs, and every instruction does."""
    return all(
        control_register(node) is None
        and not (isinstance(node, Loop) and node.trips == 0)
        and is_static(children(node))
        for node in nodes
    )


def on_core(stream: str, core: int) -> str:
    """The name that a stream of a physical core has in a logical one."""
    return f"core{core}_{stream}" if core else stream
