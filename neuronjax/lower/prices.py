"""What instructions cost, for whoever puts them in an order: this room knows no times itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.walk import children


class Move(NamedTuple):
    """A DMA transfer in ns: `work` on all DMA engines together, at least `duration` in all.

    `start` passes from trigger to first byte, `completion` from last byte to signal, `interval` at
    least from one start to the next of a queue; the issuing engine makes descriptors for
    `generator`.
    """

    work: float
    duration: float
    start: float
    completion: float
    interval: float
    generator: float


class Price(NamedTuple):
    """An instruction in ns.

    Its engine takes the next one after `issue`; results are in memory `latency` later, the first of
    them `spread` before the last. `tables` are the activation tables that it needs; None: any.
    """

    issue: float
    latency: float
    spread: float
    tables: str | None
    move: Move | None


class Prices(Protocol):
    """The prices of a machine."""

    @property
    def wake_ns(self) -> float:
        """The time from a signal to the start of what waits for it."""

    @property
    def tables_ns(self) -> float:
        """Loading other activation tables."""

    def of(self, instruction: Instruction) -> Price:
        """What one instruction costs."""

    def time(self, kernel: Kernel) -> float:
        """How long a kernel with semaphores takes, in ns."""


def busiest_time(kernel: Kernel, prices: Prices) -> float:
    """What the busiest engine, or all DMA engines together, have to do for a kernel, in ns."""
    return max(busy_times(kernel, prices).values(), default=0.0)


def busy_times(kernel: Kernel, prices: Prices) -> Mapping[object, float]:
    """What each engine has to do for a kernel, in ns; all DMA engines together: `Move`."""
    busy: defaultdict[object, float] = defaultdict(float)

    def add(nodes: Iterable[Node], times: int) -> None:
        for node in nodes:
            if not isinstance(node, Instruction):
                trips = node.trips if isinstance(node, Loop) else 1
                add(children(node), times * (trips if isinstance(trips, int) else 1))
                continue
            price = prices.of(node)
            busy[node.engine] += price.issue * times
            busy[Move] += price.move.work * times if price.move else 0.0

    add(kernel.body, 1)
    return busy
