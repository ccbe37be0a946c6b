"""Instructions whose results no document defines: what they read may not be what was meant.

They overwrite elements of a tile before those are read, or add to registers that nothing has set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from neuronjax.machine.specs import Engine
from neuronjax.nki.tracing import Trace
from neuronjax.program.affine import Affine
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.footprint import footprint
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access
from neuronjax.program.operators import ReduceCommand

_SETTING = (ReduceCommand.RESET, ReduceCommand.RESET_REDUCE, ReduceCommand.LOAD_REDUCE)


def hazards(trace: Trace) -> Iterator[tuple[str, str]]:
    """Lines with such instructions, and what to mind there."""
    reset: set[Engine] = set()
    for instruction in trace.instructions:
        for text in (*_overwritten(instruction), *_stale(instruction, reset)):
            yield trace.lines[instruction.part or 0], text


def _stale(instruction: Instruction, reset: set[Engine]) -> Iterator[str]:
    """`reset` are the engines whose accumulator registers have been set."""
    command, engine = getattr(instruction, "reduce_cmd", None), instruction.engine
    if command is None or engine is None or engine in reset:
        return
    if command in _SETTING:
        reset.add(engine)
    elif command is ReduceCommand.REDUCE or getattr(instruction, "reduce_res", None) is not None:
        yield (
            f"{instruction.mnemonic} with reduce_cmd={command.value} uses accumulator registers of "
            f"{engine.value} that nothing has set; begin with reduce_cmd=reset_reduce"
        )


def _overwritten(instruction: Instruction) -> Iterator[str]:
    """Whether an instruction overwrites what it reads later on."""
    is_transfer = isinstance(instruction, DmaInstruction)
    for target, source in itertools.permutations(instruction.uses(), 2):
        written, read = target.operand, source.operand
        if (
            not target.role.is_read
            and source.role.is_read
            and isinstance(written, Access)
            and isinstance(read, Access)
            and written.buffer == read.buffer
            and _leads(written, read, is_transfer)
        ):
            yield (
                f"{target.field} of {instruction.mnemonic} overlaps {source.field} at other "
                "elements, some of which may be overwritten before they are read; use another "
                "tensor"
            )


def _leads(target: Access, source: Access, is_in_any_order: bool) -> bool:
    """Whether elements of `source` may be overwritten before they are read: engines go through both
    in the order of their patterns, and transfers in any."""
    if target.registers or source.registers or target.elements != source.elements:
        return False
    ahead = _start(target) - _start(source)
    if _way(target) == _way(source):
        is_in_place = ahead == 0 and target.partition == source.partition
        if is_in_place or (ahead <= 0 and not is_in_any_order):
            return False
    is_repeated = any(dim.stride == 0 and dim.size > 1 for dim in source.dims)
    return not is_repeated and footprint(target, {}).meets(footprint(source, {}))


def _start(access: Access) -> int:
    return access.offset.base if isinstance(access.offset, Affine) else 0


def _way(access: Access) -> list[tuple[int, int]]:
    """The strides and sizes of a pattern, in which dimensions are one where that is the same."""
    way: list[tuple[int, int]] = []
    for dim in reversed(access.dims):
        if way and dim.stride == math.prod(way[-1]):
            way[-1] = (way[-1][0], way[-1][1] * dim.size)
        elif dim.size > 1:
            way.append((dim.stride, dim.size))
    return way
