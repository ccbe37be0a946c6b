"""Kernels that begin while those before them run.

Engines go on to the next kernel when they are through with one: its loads run while results of the
one before are computed and stored. What instructions touch that a kernel before may still use, they
touch after the streams that use it (`program.neighbours`).
"""

from __future__ import annotations

import dataclasses

from neuronjax.lower.sync.twins import twinned
from neuronjax.lower.write.rebuild import mapped, with_kernels
from neuronjax.program.control import Host
from neuronjax.program.instruction import After, Instruction
from neuronjax.program.neighbours import (
    NEVER,
    Moment,
    Neighbours,
    moment,
    outside_registers,
)
from neuronjax.program.program import Kernel, Program
from neuronjax.program.streams import is_static
from neuronjax.program.walk import leaves


def overlapping(program: Program, overlaps: int) -> Program:
    """The program with kernels that overlap so many before. Call it when all has addresses.

    Kernels that read registers set by others, or call the host, begin when all is over.
    """
    program = twinned(program)
    needed: dict[int, list[tuple[After, ...]]] = {}
    neighbours = Neighbours(program)
    for kernel, core, conflicts in neighbours.conflicts(overlaps):
        after = neighbours.needed(kernel, core, conflicts)
        known = needed.get(id(kernel))
        needed[id(kernel)] = (
            after if known is None else [_merged(*pair) for pair in zip(known, after, strict=True)]
        )

    def change(kernel: Kernel) -> Kernel:
        own = needed.get(id(kernel))
        return kernel if own is None else _changed(kernel, own, overlaps)

    return with_kernels(program, change)


def _merged(here: tuple[After, ...], there: tuple[After, ...]) -> tuple[After, ...]:
    """What an instruction comes after that has to do so at two places."""
    nearest: dict[str, Moment] = {}
    for after in (*here, *there):
        nearest[after.stream] = min(moment(after), nearest.get(after.stream, NEVER))
    return tuple(After(stream, *wanted) for stream, wanted in sorted(nearest.items()))


def _changed(kernel: Kernel, needed: list[tuple[After, ...]], overlaps: int) -> Kernel:
    if not _may_overlap(kernel):
        return kernel
    wanted = iter(needed)

    def change(instruction: Instruction) -> Instruction:
        after = next(wanted)
        return instruction.with_after(after) if after else instruction

    body = mapped(kernel.body, Instruction, change)
    return dataclasses.replace(kernel, body=body, overlaps=overlaps)


def _may_overlap(kernel: Kernel) -> bool:
    calls = any(isinstance(instruction, Host) for instruction in leaves(kernel.body))
    return not calls and not outside_registers(kernel) and is_static(kernel.body)
