"""Bytes of HBM, SBUF and PSUM in use while a program runs, and the tensors there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from neuronjax.lower.memory.account import MemoryUse, account
from neuronjax.lower.memory.occupancy import Timeline as Occupancy
from neuronjax.lower.memory.occupancy import timeline
from neuronjax.profiling.records import Level, Tensor
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import Kernel, Program
from neuronjax.timing.timeline import Timeline

MEMORIES = ("hbm", "sbuf", "psum")

MOST_TENSORS = 1_500
"""The largest tensors of each memory that are told."""


@dataclass(frozen=True, slots=True)
class Memories:
    """What a program takes of the memories of its core."""

    use: MemoryUse
    #: By memory: bytes of scratch in use, of a partition where it lies on chip.
    levels: Mapping[str, tuple[Level, ...]]
    #: The largest of each memory.
    tensors: tuple[Tensor, ...]


def memories(program: Program, order: Sequence[Kernel], timed: Timeline) -> Memories:
    """The memory of a program whose kernels first run in this order, at the times of a schedule."""
    times = timeline(program)
    positions = _positions(order, times)
    tensors = [*_outer(program, times, positions), *_tiles(order)]
    return Memories(
        use=account(program),
        levels={
            memory: levels([tensor for tensor in tensors if tensor.memory == memory], timed)
            for memory in MEMORIES
        },
        tensors=tuple(_largest(tensors)),
    )


def levels(tensors: Sequence[Tensor], timed: Timeline) -> tuple[Level, ...]:
    """Bytes of a memory's addresses in use by scratch from each moment on.

    A tensor may take the addresses of another one while the last kernel that reads it still ends:
    addresses count once.
    """
    scratch = [tensor for tensor in tensors if tensor.kind == Kind.SCRATCH.value and tensor.nbytes]
    ends = [end for tensor in scratch for end in (tensor.address, tensor.address + tensor.nbytes)]
    cuts = np.unique(np.array(ends, np.int64))
    sizes, users = np.diff(cuts), np.zeros(max(len(cuts) - 1, 0), np.int64)
    changes: dict[float, list[tuple[int, Tensor]]] = defaultdict(list)
    for tensor in scratch:
        changes[timed.kernels[tensor.first].start_ns].append((1, tensor))
        changes[timed.kernels[tensor.last].end_ns].append((-1, tensor))
    reached: list[Level] = []
    for at, changed in sorted(changes.items(), key=lambda pair: pair[0]):
        for step, tensor in changed:
            first, last = np.searchsorted(cuts, (tensor.address, tensor.address + tensor.nbytes))
            users[first:last] += step
        nbytes = int(sizes[users > 0].sum())
        if not reached or reached[-1].nbytes != nbytes:
            reached.append(Level(at, nbytes))
    return tuple(reached)


def _positions(order: Sequence[Kernel], times: Occupancy) -> list[int]:
    """The position at which each of the kernels runs, in the order of their runs."""
    seen: dict[int, int] = defaultdict(int)
    result = []
    for kernel in order:
        runs = times.kernels.get(id(kernel), [0])
        result.append(runs[min(seen[id(kernel)], len(runs) - 1)])
        seen[id(kernel)] += 1
    return result


def _outer(program: Program, times: Occupancy, positions: Sequence[int]) -> Iterator[Tensor]:
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


def _stays(buffer: Buffer, times: Occupancy) -> Iterator[tuple[int, int]]:
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
