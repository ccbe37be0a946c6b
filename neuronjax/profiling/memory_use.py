"""Bytes of HBM, SBUF and PSUM while a program runs, kernel by kernel, and the tensors there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from neuronjax.lower.memory.account import MemoryUse, account
from neuronjax.lower.memory.occupancy import Timeline, timeline
from neuronjax.profiling.records import Tensor
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import Kernel, Program

MOST_TENSORS = 1_500
"""Of each memory, the largest."""


@dataclass(frozen=True, slots=True)
class Live:
    """Memory in use while a kernel runs; SBUF and PSUM in bytes per partition."""

    hbm_scratch_bytes: int
    sbuf_bytes: int
    psum_bytes: int


@dataclass(frozen=True, slots=True)
class Memories:
    """What a program takes of the memories of its core."""

    use: MemoryUse
    #: That of each kernel.
    lives: tuple[Live, ...]
    tensors: tuple[Tensor, ...]


def memories(program: Program, order: Sequence[Kernel]) -> Memories:
    """The memory of a program whose kernels first run in this order."""
    times = timeline(program)
    use = account(program)
    held = _scratch(program, times)
    positions = _positions(order, times)
    return Memories(
        use=use,
        lives=tuple(
            Live(
                held[position],
                use.sbuf_peak.get(kernel.name, 0),
                use.psum_peak.get(kernel.name, 0),
            )
            for kernel, position in zip(order, positions, strict=True)
        ),
        tensors=tuple(_largest([*_outer(program, times, positions), *_tiles(order)])),
    )


def _scratch(program: Program, times: Timeline) -> list[int]:
    """Bytes of scratch in HBM at each position."""
    change = [0] * (times.length + 1)
    for buffer in program.buffers:
        if buffer.kind is Kind.SCRATCH and not buffer.on_chip:
            for first, last in times.lives(buffer.name):
                change[first] += buffer.extent
                change[last + 1] -= buffer.extent
    return list(accumulate(change))


def _positions(order: Sequence[Kernel], times: Timeline) -> list[int]:
    """Where each of the kernels runs, in the order of their runs."""
    seen: dict[int, int] = defaultdict(int)
    result = []
    for kernel in order:
        runs = times.kernels.get(id(kernel), [0])
        result.append(runs[min(seen[id(kernel)], len(runs) - 1)])
        seen[id(kernel)] += 1
    return result


def _outer(program: Program, times: Timeline, positions: Sequence[int]) -> Iterator[Tensor]:
    """Tensors that outlive a kernel."""
    if not positions:
        return
    ascending = sorted(range(len(positions)), key=positions.__getitem__)
    known = [positions[number] for number in ascending]
    for buffer in program.buffers:
        for first, last in _stays(buffer, times):
            start = min(bisect_left(known, first), len(known) - 1)
            end = max(bisect_right(known, last) - 1, start)
            yield _tensor(buffer, ascending[start], ascending[end])


def _stays(buffer: Buffer, times: Timeline) -> Iterator[tuple[int, int]]:
    """Positions from which to which it is used; whatever is not scratch stays beyond that."""
    if buffer.kind is Kind.SCRATCH:
        yield from times.lives(buffer.name)
    elif not buffer.on_chip:
        events = times.events.get(buffer.name)
        yield (events[0].position, events[-1].position) if events else (0, 0)


def _tiles(order: Sequence[Kernel]) -> Iterator[Tensor]:
    for number, kernel in enumerate(order):
        for buffer in kernel.buffers:
            yield _tensor(buffer, number, number)


def _tensor(buffer: Buffer, first: int, last: int) -> Tensor:
    return Tensor(
        name=buffer.name,
        memory=buffer.memory.value,
        kind=buffer.kind.value,
        dtype=f"{buffer.dtype.name}{list(buffer.shape)}",
        address=buffer.address or 0,
        nbytes=buffer.extent,
        first=first,
        last=last,
    )


def _largest(tensors: list[Tensor]) -> Iterator[Tensor]:
    tensors.sort(key=lambda tensor: (tensor.memory, -tensor.nbytes))
    for _, group in groupby(tensors, key=lambda tensor: tensor.memory):
        yield from list(group)[:MOST_TENSORS]
