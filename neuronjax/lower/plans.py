"""The choice of the cheapest way to write a kernel, of those whose tiles fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neuronjax.lower.memory.allocate import fits
from neuronjax.lower.memory.lifetimes import Life, lives
from neuronjax.lower.prices import Prices, busy_times
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Memory
from neuronjax.program.program import Kernel, Loop, Node, Program, Target
from neuronjax.program.walk import leaves

Plan = Callable[[], Kernel]
"""Writes a kernel."""


def cheapest(
    plans: Sequence[Sequence[Plan]], target: Target, prices: Prices, waiting_share: float
) -> Kernel:
    """The kernel of the cheapest plan of the first row in which any fits.

    The busiest engine waits for the part `waiting_share` of what the others do. If no plan fits, it
    is the last one of all: allocation then says what is too large.
    """
    *_, (*_, last) = plans
    if [last] == [plan for row in plans for plan in row]:
        return last()
    program = Program(name="plans", target=target, body=())
    for row in plans:
        fitting = [kernel for plan in row if _fits(kernel := plan(), program)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            return min(fitting, key=lambda kernel: _price(kernel, target, prices, waiting_share))
    return last()


def _fits(kernel: Kernel, program: Program) -> bool:
    """Whether a kernel's tiles find room."""
    core = program.target.core
    taken = {Memory.SBUF: 0, Memory.PSUM: 0}
    for tile in kernel.buffers:
        unit = core.psum.bank_bytes if tile.memory is Memory.PSUM else bytes_of(tile.dtype)
        taken[tile.memory] += tile.slots * -(-tile.slot_bytes // unit) * unit
    is_roomy = (
        taken[Memory.SBUF] <= core.sbuf.usable_partition_bytes
        and taken[Memory.PSUM] <= core.psum.usable_partition_bytes
    )
    return is_roomy or fits(kernel, program, is_apart=False)


def _price(kernel: Kernel, target: Target, prices: Prices, waiting_share: float) -> float:
    """About how long a kernel takes, in ns.

    Engines work at the same time on different iterations of a loop, but for a part of what is not
    the busiest one's work; they work one after the other if there is no room for the tiles of two
    iterations. How well iterations overlap is known only when they are in order.
    """
    busy = busy_times(kernel, prices).values()
    if held_by_overlapping(kernel) > target.core.sbuf.usable_partition_bytes:
        return sum(busy)
    return max(busy, default=0.0) * (1 - waiting_share) + sum(busy) * waiting_share


def held_by_overlapping(kernel: Kernel) -> int:
    """Bytes of each partition of SBUF that tiles take, at most, while two iterations of an
    innermost loop overlap."""
    tiles = [buffer for buffer in kernel.buffers if buffer.memory is Memory.SBUF]
    held = lives(kernel.body, tiles)
    most = 0
    for first, last in _innermost(kernel.body, 0):
        alive = [
            (tile, life) for tile, life in held.items() if life[0] <= last and first <= life[1]
        ]
        own = [tile for tile, life in alive if first <= life[0] and life[1] <= last]
        most = max(most, sum(tile.extent for tile in (*(tile for tile, _ in alive), *own)))
    return most


def _innermost(nodes: Sequence[Node], first: int) -> Iterator[Life]:
    """The positions of instructions in the loops without loops in them."""
    for node in nodes:
        size = sum(1 for _ in leaves((node,)))
        if isinstance(node, Loop):
            inner = list(_innermost(node.body, first))
            yield from inner or [(first, first + size - 1)]
        first += size
