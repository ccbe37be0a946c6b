"""Of several ways to write a kernel, the cheapest of those whose tiles fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neuronjax.lower.memory.allocate import fits
from neuronjax.lower.memory.lifetimes import Life, lives
from neuronjax.lower.prices import Move, Prices, busy_times
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Memory
from neuronjax.program.program import Kernel, Loop, Node, Program, Target
from neuronjax.program.walk import leaves

Plan = Callable[[], Kernel]
"""Writes a kernel."""


def cheapest(
    plans: Sequence[Sequence[Plan]], target: Target, prices: Prices, worth: float
) -> Kernel:
    """The kernel of the cheapest plan of the first row in which any fits.

    A later plan takes the place of an earlier one if it costs less than a part `worth` of that.
    If none fits, it is the last one of all: allocation then says what is too large.
    """
    *_, (*_, last) = plans
    if [last] == [plan for row in plans for plan in row]:
        return last()
    program = Program(name="plans", target=target, body=())
    for row in plans:
        fitting = (kernel for plan in row if _fits(kernel := plan(), program))
        best = next(fitting, None)
        if best is not None:
            return _cheapest(best, fitting, target, prices, worth)
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


def _cheapest(
    best: Kernel, others: Iterator[Kernel], target: Target, prices: Prices, worth: float
) -> Kernel:
    """The cheapest of all; one that is alone is not priced."""
    least: float | None = None
    for kernel in others:
        least = price(best, target, prices) if least is None else least
        other = price(kernel, target, prices)
        if other < worth * least:
            best, least = kernel, other
    return best


def price(kernel: Kernel, target: Target, prices: Prices) -> float:
    """About how long a kernel takes, in ns.

    Engines work at the same time on different iterations of a loop, if there is room for the tiles
    of two of them, and else one after the other.
    """
    busy = dict(busy_times(kernel, prices))
    moves = busy.pop(Move, 0.0)
    room = target.core.sbuf.usable_partition_bytes
    time = max if held_by_overlapping(kernel) <= room else sum
    return max(time(busy.values()), moves) if busy else moves


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
