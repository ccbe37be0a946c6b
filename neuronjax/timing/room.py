"""How much of what later kernels need can be in SBUF when a kernel ends.

Loads run ahead while a kernel leaves DMA engines idle, into what its tiles leave free: a tile takes
memory from the first to the last of the kernel's outermost nodes that use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from neuronjax.program.operand import Access, Buffer, Memory
from neuronjax.timing.encoding import PS, Compiled, Leaf, Nest
from neuronjax.timing.platform import Platform
from neuronjax.timing.simulate import Simulated


def room(compiled: Compiled, result: Simulated, platform: Platform) -> int:
    """DMA time in ps of what can be loaded ahead by the end, with all idle time before it.

    At each node what is there is at most what is free, and grows by idle time only.
    """
    sbuf = platform.core.sbuf
    rate = min(platform.hbm_bytes_per_ns, platform.core.dma.engines * platform.dma_bytes_per_ns)
    per_byte = sbuf.partitions / rate * PS
    spans = itertools.pairwise([(0, 0), *result.marks])
    idle = [max(0, (end - begin) - (busy - before)) for (begin, before), (end, busy) in spans]
    free = [max(0, sbuf.usable_partition_bytes - taken) for taken in _taken(compiled)]
    most = round(sbuf.usable_partition_bytes * per_byte)
    for nbytes, gained in zip(free, idle, strict=True):
        most = min(most + gained, round(nbytes * per_byte))
    return most


def _taken(compiled: Compiled) -> Sequence[int]:
    """Bytes of a partition that tiles take, by outermost node."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for position, node in enumerate(compiled.streams):
        for leaf in _leaves(node):
            for use in compiled.instructions[leaf.number].uses():
                operand = use.operand
                if isinstance(operand, Access) and operand.memory is Memory.SBUF:
                    first, _ = lives.get(operand.buffer, (position, position))
                    lives[operand.buffer] = (first, position)
    change = [0] * (len(compiled.streams) + 1)
    for tile, (first, last) in lives.items():
        change[first] += tile.extent
        change[last + 1] -= tile.extent
    return list(itertools.accumulate(change[:-1]))


def _leaves(node: Leaf | Nest) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        for inner in node.body:
            yield from _leaves(inner)
