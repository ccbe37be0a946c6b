"""What an allocated program takes of the memories of its core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neuronjax.lower.memory.occupancy import Timeline, timeline
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.program import Program
from neuronjax.program.walk import kernels


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes; those on chip are bytes of one partition.

    Aliases count once, with the first of them that is declared. Peaks are ends of the last buffer.
    """

    hbm_peak_bytes: int
    hbm_by_kind: dict[Kind, int]
    #: Kernel -> the greatest of the kernels of that name.
    sbuf_peak: dict[str, int]
    psum_peak: dict[str, int]
    #: Values that live in SBUF from one kernel to another, over all partitions.
    sbuf_resident_bytes: int
    #: Scratch in HBM: written by a kernel and read back by another one.
    spilled_bytes: int


def account(program: Program) -> MemoryUse:
    """The memory use of a program whose buffers have addresses."""
    times = timeline(program)
    outer = program.buffers
    held = [buffer for buffer in outer if not buffer.on_chip]
    scratch = [buffer for buffer in held if buffer.kind is Kind.SCRATCH and _is_used(buffer, times)]
    residents = [buffer for buffer in outer if buffer.memory is Memory.SBUF]
    return MemoryUse(
        hbm_peak_bytes=_end(held),
        hbm_by_kind={
            kind: _covered(buffer for buffer in held if buffer.kind is kind) for kind in Kind
        },
        sbuf_peak=_peaks(program, Memory.SBUF, times),
        psum_peak=_peaks(program, Memory.PSUM, times),
        sbuf_resident_bytes=sum(buffer.extent * buffer.partitions for buffer in residents),
        spilled_bytes=sum(buffer.extent for buffer in scratch),
    )


def _is_used(buffer: Buffer, times: Timeline) -> bool:
    return len(times.events.get(buffer.name, ())) > 1


def _peaks(program: Program, memory: Memory, times: Timeline) -> dict[str, int]:
    peaks: dict[str, int] = {}
    outer = [buffer for buffer in program.buffers if buffer.memory is memory]
    for _, kernel in kernels(program):
        positions = times.kernels.get(id(kernel), [])
        held = [buffer for buffer in outer if _lives_at(buffer, positions, times)]
        own = [buffer for buffer in kernel.buffers if buffer.memory is memory]
        peaks[kernel.name] = max(peaks.get(kernel.name, 0), _end([*held, *own]))
    return peaks


def _lives_at(buffer: Buffer, positions: list[int], times: Timeline) -> bool:
    life = times.lives(buffer.name)
    return any(first <= position <= last for position in positions for first, last in life)


def _end(buffers: Iterable[Buffer]) -> int:
    return max(((buffer.address or 0) + buffer.extent for buffer in buffers), default=0)


def _covered(buffers: Iterable[Buffer]) -> int:
    """Bytes that at least one of the buffers lies on."""
    total = reached = 0
    for start, end in sorted((b.address or 0, (b.address or 0) + b.extent) for b in buffers):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
