"""The streams of a core: which instructions complete in order.

An engine runs its instructions in order. It only starts transfers and collectives: those of one
engine on one DMA queue, or on one stream of collectives, complete in order.
"""

from __future__ import annotations

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction

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


def on_core(stream: str, core: int) -> str:
    """The name that a stream of a physical core has in a logical one."""
    return f"core{core}_{stream}" if core else stream
