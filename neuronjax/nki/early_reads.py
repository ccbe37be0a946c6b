"""Instructions that take results out of PSUM as soon as those are complete: banks are free sooner.

Kernels often compute as many products as they need before they read the first. What reads PSUM can
come right behind the last instruction that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuronjax.nki.tracing import Trace
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory, Register
from neuronjax.program.vector_engine import (
    ScalarTensorTensor,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

_START = -1
"""Where an instruction comes that depends on none."""

_WITHOUT_STATE = (TensorCopy, TensorTensor, TensorScalar, ScalarTensorTensor)
"""Instructions whose results depend on their operands alone."""


def with_early_reads(trace: Trace) -> Sequence[Instruction]:
    """The instructions of a trace, in which those that read PSUM come as early as they can.

    The order stays as it is if a loop runs as often as a register says, or tiles are also viewed as
    another width.
    """
    if trace.register_loops or trace.aliases:
        return trace.instructions
    last_write: dict[str, int] = {}
    last_touch: dict[str, int] = {}
    places: list[int] = []
    for number, instruction in enumerate(trace.instructions):
        reads, writes = _names(instruction.reads()), _names(instruction.writes())
        place = number
        if _reads_psum(instruction):
            before = {last_write[name] for name in reads | writes if name in last_write}
            before |= {last_touch[name] for name in writes if name in last_touch}
            place = max((places[other] for other in before), default=_START)
        places.append(place)
        last_write |= dict.fromkeys(writes, number)
        last_touch |= dict.fromkeys(reads | writes, number)
    order = sorted(range(len(places)), key=lambda number: (places[number], number))
    return [trace.instructions[number] for number in order]


def _names(operands: Iterable[Access | Register]) -> set[str]:
    """The tiles, tensors and registers among operands."""
    return {item.buffer.name if isinstance(item, Access) else item.name for item in operands}


def _reads_psum(instruction: Instruction) -> bool:
    """Whether all that it does is to bring to SBUF what is in PSUM, perhaps with others."""
    return (
        isinstance(instruction, _WITHOUT_STATE)
        and any(read.buffer.memory is Memory.PSUM for read in _accesses(instruction.reads()))
        and all(write.buffer.memory is Memory.SBUF for write in _accesses(instruction.writes()))
    )


def _accesses(operands: Iterable[Access | Register]) -> list[Access]:
    return [operand for operand in operands if isinstance(operand, Access)]
