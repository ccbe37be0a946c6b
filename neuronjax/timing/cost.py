"""What instructions cost: small records that add.

A rule makes a `Cost` from parts: ``streaming(...) + extra(...)``. Times are ns. The simulation
reads the fields and knows no formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.timing.platform import Platform


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """What a DMA asks of queues and of the DMA engines."""

    #: Bytes that arrive.
    nbytes: int
    #: Bytes that HBM reads and writes.
    hbm_bytes: int
    #: DMA engines that share the transfer, and the time that each of them is busy.
    engines: int
    engine_ns: float
    #: From trigger to first byte, and from last byte to the signal.
    start_ns: float
    completion_ns: float
    #: Least time from the start of one transfer of a queue to that of the next.
    interval_ns: float
    #: Time of the hardware descriptor generator of the issuing engine; 0: it is not used.
    generator_ns: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What a collective asks of a stream and of the links."""

    #: Steps and synchronisation: the stream is busy, the links are not.
    latency_ns: float
    #: Time that the data takes on the links: concurrent collectives take turns.
    wire_ns: float
    #: Bytes that each rank sends at least.
    nbytes: int
    #: The ranks of a group, or a sender and its receiver.
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The cost of one instruction; ``a + b`` is that of both parts."""

    #: Time until the engine can begin its next instruction.
    issue_ns: float = 0.0
    #: From there until results are in memory.
    latency_ns: float = 0.0
    #: How long before the last result the first one is in memory: results that stream.
    spread_ns: float = 0.0
    #: Multiplications and additions of the Tensor engine.
    flops: int = 0
    #: Hardware instructions.
    instructions: int = 0
    #: Activation tables that must be loaded; None: any.
    tables: str | None = None
    transfer: Transfer | None = None
    message: Message | None = None

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            issue_ns=self.issue_ns + other.issue_ns,
            latency_ns=self.latency_ns + other.latency_ns,
            spread_ns=self.spread_ns + other.spread_ns,
            flops=self.flops + other.flops,
            instructions=self.instructions + other.instructions,
            tables=self.tables or other.tables,
            transfer=self.transfer or other.transfer,
            message=self.message or other.message,
        )


Rule = Callable[[Any, Platform], Cost]
"""The cost of an instruction of one type on a platform."""

ONE = Cost(instructions=1)


def streaming(platform: Platform, engine: Engine, cycles: float) -> Cost:
    """Elements that stream through an element-wise engine in `cycles`.

    The next instruction follows after max(64, cycles + exposed access): the guide's interval, and
    the part of an access to memory that it does not hide. Results are in memory a latency after
    the last of max(64, cycles).
    """
    least = platform.timings.engines.minimum_interval_cycles
    calibration = platform.calibration
    elements = max(least, cycles)
    interval = max(least, cycles + calibration.exposed_access_cycles)
    latency = elements + calibration.engine_latency_cycles - interval
    return Cost(
        issue_ns=platform.ns(interval, engine),
        latency_ns=platform.ns(latency, engine),
        spread_ns=platform.ns(elements - least, engine),
        instructions=1,
    )


def extra(platform: Platform, engine: Engine, cycles: float) -> Cost:
    """Further cycles of the engine."""
    return Cost(issue_ns=platform.ns(cycles, engine))


def sequencer(platform: Platform, engine: Engine) -> Cost:
    """An instruction that the engine's sequencer deals with alone: the least interval."""
    interval = platform.timings.engines.minimum_interval_cycles
    return Cost(issue_ns=platform.ns(interval, engine), instructions=1)
