"""Whether an instruction reads what another one of the same engine wrote just before.

Then it waits for the results; otherwise engines overlap neighbours. Where addresses cannot be
compared they are taken to overlap.
"""

from __future__ import annotations

import enum

from neuronjax.program.affine import Affine
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction, Role
from neuronjax.program.operand import Access


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


def _distance(read: Affine, write: Affine, variable: str | None) -> int | None:
    """Start of `read` minus that of `write`; None if it varies."""
    if read.terms != write.terms:
        return None
    return read.base - write.base + (dict(write.terms).get(variable, 0) if variable else 0)


def _meet(read: Access, write: Access, variable: str | None) -> bool:
    if read.buffer != write.buffer:
        return False
    slots = _distance(read.slot, write.slot, variable)
    if slots is not None and slots % read.buffer.slots:
        return False
    if not isinstance(read.offset, Affine) or not isinstance(write.offset, Affine):
        return True
    start = _distance(read.offset, write.offset, variable)
    if start is not None and not _touch(start, *read.reach, *write.reach):
        return False
    partition = _distance(read.partition, write.partition, variable)
    return partition is None or _touch(partition, 0, read.partitions - 1, 0, write.partitions - 1)


def _touch(start: int, low: int, high: int, other_low: int, other_high: int) -> bool:
    """Whether start + [low, high] and [other_low, other_high] have a number in common."""
    return start + low <= other_high and other_low <= start + high
