"""Bytes of HBM, SBUF and PSUM while a program runs, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from neuronjax.lower.account import MemoryUse, account
from neuronjax.lower.timeline import timeline
from neuronjax.program.operand import Kind
from neuronjax.program.program import Kernel, Program


@dataclass(frozen=True, slots=True)
class Live:
    """What is in use while one kernel runs; bytes on chip are of one partition."""

    hbm_scratch_bytes: int
    sbuf_bytes: int
    psum_bytes: int


def live(program: Program, order: Iterable[Kernel]) -> tuple[MemoryUse, list[Live]]:
    """The program's memory, and that of its kernels in the order in which they run first."""
    use = account(program)
    times = timeline(program)
    change = [0] * (times.length + 1)
    for buffer in program.buffers:
        if buffer.kind is Kind.SCRATCH and not buffer.on_chip:
            for first, last in times.lives(buffer.name):
                change[first] += buffer.extent
                change[last + 1] -= buffer.extent
    held = list(accumulate(change))
    seen: dict[int, int] = defaultdict(int)
    found = []
    for kernel in order:
        positions = times.kernels.get(id(kernel), [0])
        position = positions[min(seen[id(kernel)], len(positions) - 1)]
        seen[id(kernel)] += 1
        sbuf, psum = use.sbuf_peak.get(kernel.name, 0), use.psum_peak.get(kernel.name, 0)
        found.append(Live(held[position], sbuf, psum))
    return use, found
