"""Cost of sequencers, and of work for the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program import control as program
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory
from neuronjax.timing.cost import ONE, Cost, Rule, sequencer
from neuronjax.timing.platform import Platform

HOST_BYTES_PER_NS = 16.0
"""The memory pyramid of the NKI documentation: host about 16 GB/s."""
HOST_NS_PER_COMPARISON = 25.0
"""XLA:CPU sorts 2^14 to 2^22 FP32 numbers, or their indices with them, in 20 to 31 ns for each of
n log2 n comparisons, on a core of an Intel Xeon (measured)."""


def _register(instruction: Any, platform: Platform) -> Cost:
    return sequencer(platform, instruction.engine)


def _memory(access: Access, platform: Platform) -> Cost:
    """A word from or to memory: a DMA's latency in HBM, an access in SBUF."""
    calibration = platform.calibration
    if access.memory is Memory.HBM:
        return Cost(latency_ns=calibration.dma_start_ns + calibration.dma_completion_ns)
    return Cost(latency_ns=platform.ns(platform.timings.engines.access_cycles, Engine.SYNC))


def _load(instruction: program.RegisterLoad, platform: Platform) -> Cost:
    """The engine goes on when the register has its value."""
    latency = _memory(instruction.src, platform).latency_ns
    return sequencer(platform, instruction.engine) + Cost(issue_ns=latency)


def _store(instruction: program.RegisterStore, platform: Platform) -> Cost:
    return sequencer(platform, instruction.engine) + _memory(instruction.dst, platform)


def _semaphore_event(instruction: program.SemaphoreEvent, platform: Platform) -> Cost:
    return ONE + Cost(issue_ns=platform.calibration.semaphore_event_ns)


def _host(instruction: program.Host, platform: Platform) -> Cost:
    """The data goes to the host and back; what the host does beside comparing takes no time."""
    nbytes = sum(access.nbytes for access in instruction.accesses())
    launch = platform.calibration.prologue_ns[platform.core.version]
    work = instruction.comparisons * HOST_NS_PER_COMPARISON
    return ONE + Cost(issue_ns=launch + nbytes / HOST_BYTES_PER_NS + work)


COSTS: Mapping[type[Instruction], Rule] = {
    program.RegisterLoad: _load,
    program.RegisterStore: _store,
    program.RegisterMove: _register,
    program.RegisterArithmetic: _register,
    program.SemaphoreEvent: _semaphore_event,
    program.Host: _host,
}
