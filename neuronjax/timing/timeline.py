"""The result of a schedule: what took how long, and what it was made of. Times are ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DMA = "dma"
COLLECTIVE = "collective"
"""Names of resources beside those of the engines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One instruction, transfer or collective. `lane` is an engine, `queue 3` or `stream 0`."""

    mnemonic: str
    lane: str
    start_ns: float
    end_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """What a part of a kernel adds to one run: from the end of those before it to its own."""

    name: str
    operations: tuple[str, ...]
    sources: tuple[str, ...]
    duration_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """All runs of a kernel at one place of the program."""

    path: str
    operations: tuple[str, ...]
    sources: tuple[str, ...]
    runs: int
    #: Start of its first, and end of its last run.
    start_ns: float
    end_ns: float
    #: One run; the next kernel may begin before its end.
    duration_ns: float
    #: One run: by engine, "dma" and "collective".
    busy_ns: Mapping[str, float] = field(hash=False)
    #: One run: time during which any transfer is under way.
    dma_active_ns: float
    #: The resource that is busy for longest.
    critical: str
    #: One run: multiplications and additions of the Tensor engine, and bytes of HBM.
    flops: int
    hbm_bytes: int
    #: At least one; their durations add up to the kernel's.
    parts: tuple[PartTime, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A program in time. Work counts both physical cores of a logical one."""

    program: str
    total_ns: float
    #: Part of the total before the first and after the last kernel.
    launch_ns: float
    kernels: tuple[KernelTime, ...]
    #: Over all runs, on the busier physical core: by engine, "dma" and "collective".
    busy_ns: Mapping[str, float] = field(hash=False)
    #: Runs of instructions by mnemonic, and hardware instructions by engine.
    instructions: Mapping[str, int] = field(hash=False)
    hardware_instructions: Mapping[str, int] = field(hash=False)
    flops: int
    dma_bytes: int
    hbm_bytes: int
    network_bytes: int
    #: Of these, by the ranks of a group, or by sender and receiver.
    traffic: Mapping[tuple[int, ...], int] = field(hash=False)
    #: Instructions that the simulation went through; the others follow from steady states.
    simulated_instructions: int
    #: What had to be assumed, such as trips of a while.
    assumed: tuple[str, ...] = ()

    @property
    def instruction_count(self) -> int:
        """Runs of instructions."""
        return sum(self.instructions.values())

    def share(self, resource: str) -> float:
        """Busy time over the total."""
        return self.busy_ns[resource] / self.total_ns
