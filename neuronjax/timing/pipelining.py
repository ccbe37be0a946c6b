"""Whether an instruction reads what another one of the same engine wrote just before.

Then it waits for the results; otherwise engines overlap neighbours. Where addresses cannot be
compared they are taken to overlap.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.footprint import footprint
from neuronjax.program.instruction import Instruction, Role
from neuronjax.program.operand import Access

_STANDING: Mapping[str, int | None] = {}
"""Loops that run while two instructions of one trip are compared: none."""


class Relation(enum.Enum):
    """How an instruction depends on an earlier one of its engine."""

    #: It does not.
    NONE = enum.auto()
    #: It reads elements in the order in which they are written: it may follow close behind.
    BEHIND = enum.auto()
    #: It needs all results.
    AFTER = enum.auto()


def depends(later: Instruction, earlier: Instruction, variable: str | None) -> Relation:
    """Whether and how `later` reads what `earlier` writes.

    `variable` names the loop of which `earlier` ran in the trip before; None: in the same one.
    Transfers and collectives tell by semaphores alone, and the Tensor engine accumulates without
    waiting.
    """
    others = (DmaInstruction, CollectiveInstruction)
    if isinstance(later, others) or isinstance(earlier, others):
        return Relation.NONE
    reads = [use.operand for use in later.uses() if use.role is Role.READ]
    writes = [use.operand for use in earlier.uses() if use.role.is_write]
    met = [
        read.dims == write.dims and read.offset == write.offset and variable is None
        for read in reads
        for write in writes
        if isinstance(read, Access) and isinstance(write, Access) and _meet(read, write, variable)
    ]
    if not met:
        return Relation.NONE
    return Relation.BEHIND if all(met) else Relation.AFTER


def _meet(read: Access, write: Access, variable: str | None) -> bool:
    if read.buffer != write.buffer:
        return False
    reading = footprint(read, _STANDING)
    if variable is not None:
        reading = reading.later(variable, 1)
    return reading.meets(footprint(write, _STANDING))
