"""What instructions cost, for whoever puts them in an order: this room knows no times itself."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel


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
        """From a signal to the start of what waits for it."""

    @property
    def tables_ns(self) -> float:
        """Loading other activation tables."""

    def of(self, instruction: Instruction) -> Price:
        """What one instruction costs."""

    def time(self, kernel: Kernel) -> float:
        """How long a kernel with semaphores takes, in ns."""
