"""Which stream executes an instruction: its engine, a DMA queue, or a stream of collectives."""

from __future__ import annotations

from collections import deque

from neuronjax.emulate.code import Step
from neuronjax.emulate.instruction_reader import Entry
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.gpsimd_engine import CoreBarrier


def may_go(entries: deque[Entry]) -> bool:
    """Whether a queue's next transfer can complete; an exchange needs the other ranks."""
    if not entries:
        return False
    entry = entries[0]
    return entry.step.exchange is None or (
        entry.ticket is not None and entry.ticket.results is not None
    )


def queue_of(step: Step) -> str | None:
    """The queue or stream that executes an instruction; None: the engine itself."""
    instruction = step.instruction
    if isinstance(instruction, DmaInstruction):
        return f"queue {instruction.queue}"
    if step.exchange is None or isinstance(instruction, CoreBarrier):
        return None
    return step.exchange.stream


def meets_on_engine(step: Step) -> bool:
    """Whether the engine itself waits for the other sides of an exchange."""
    return step.exchange is not None and queue_of(step) is None
