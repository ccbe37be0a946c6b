"""Bytes of HBM, SBUF and PSUM while a program runs, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from neuronjax.lower.memory.account import MemoryUse, account
from neuronjax.lower.memory.occupancy import timeline
from neuronjax.program.operand import Kind
from neuronjax.program.program import Kernel, Program


@dataclass(frozen=True, slots=True)
class Live:
    """Memory in use while a kernel runs; SBUF and PSUM in bytes per partition."""

    hbm_scratch_bytes: int
    sbuf_bytes: int
    psum_bytes: int


def live(program: Program, order: Iterable[Kernel]) -> tuple[MemoryUse, list[Live]]:
    """The memory of the program, and that of each kernel in `order`, that of their first runs."""
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
    lives = []
    for kernel in order:
        positions = times.kernels.get(id(kernel), [0])
        position = positions[min(seen[id(kernel)], len(positions) - 1)]
        seen[id(kernel)] += 1
        sbuf, psum = use.sbuf_peak.get(kernel.name, 0), use.psum_peak.get(kernel.name, 0)
        lives.append(Live(held[position], sbuf, psum))
    return use, lives
