"""What a kernel's instructions do in one run, as sums by name.

Names are those of Neuron Explorer's summary where it has one (tools/neuron-explorer, summary page):
``hardware_flops``, ``transpose_flops``, ``adjusted_…`` (cost relative to BF16), ``<memory>_read_``
and ``_write_bytes``, ``dma_transfer_count``, ``dma_transfer_total_bytes``, ``spill_save_bytes``,
``spill_reload_bytes``, ``input_queue_bytes``, ``output_queue_bytes``, ``weight_queue_bytes``. Ours:
``dma_ideal_ns``, the time of the transfers at the sustained rate of all DMA engines, and
``dma_work_ns``, what they take, start-up included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from neuronjax.program.dma import DmaInstruction
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Kind, Memory
from neuronjax.program.tensor_engine import Matmul, MatmulMX, TensorTranspose
from neuronjax.timing.cost import Cost
from neuronjax.timing.platform import Platform
from neuronjax.timing.streams import Compiled

_QUEUES = {
    (Kind.ARGUMENT, "read"): "input_queue_bytes",
    (Kind.RESULT, "write"): "output_queue_bytes",
    (Kind.CONSTANT, "read"): "weight_queue_bytes",
    (Kind.SCRATCH, "read"): "spill_reload_bytes",
    (Kind.SCRATCH, "write"): "spill_save_bytes",
}
"""Whose HBM is read or written, and how -> what that is called."""

_WIDEST = 4
"""The most that a transfer's cast makes of the bytes that arrive."""


Touched = Mapping[tuple[str, str], int]
"""HBM buffer by the kernel's name of it, and "read" or "write" -> bytes."""


def work_of(compiled: Compiled, platform: Platform) -> tuple[Counter[str], Touched]:
    """The sums of a kernel, and what it moves of which buffer."""
    found: Counter[str] = Counter()
    touched: Counter[tuple[str, str]] = Counter()
    rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
    for each, cost, times in rows:
        for name, value in _one(each, cost, platform):
            found[name] += value * times
        for access, way in _accesses(each):
            nbytes = _nbytes(access, cost) * times
            found[f"{access.memory.value}_{way}_bytes"] += nbytes
            if access.memory is Memory.HBM:
                touched[access.buffer.name, way] += nbytes
    return found, touched


def queues(touched: Touched, kinds: Mapping[str, Kind]) -> Counter[str]:
    """Bytes of HBM by whose they are; `kinds` of the buffers by the kernel's names of them."""
    found: Counter[str] = Counter()
    for (name, way), nbytes in touched.items():
        queue = _QUEUES.get((kinds.get(name, Kind.SCRATCH), way))
        if queue is not None:
            found[queue] += nbytes
    return found


def _one(each: Instruction, cost: Cost, platform: Platform) -> Iterator[tuple[str, Any]]:
    if cost.flops:
        yield from _flops(each, cost)
    if isinstance(each, DmaInstruction) and cost.transfer is not None:
        yield from _transfer(cost, platform)


def _accesses(each: Instruction) -> Iterator[tuple[Access, str]]:
    for use in each.uses():
        if isinstance(use.operand, Access):
            if use.role.is_read:
                yield use.operand, "read"
            if use.role.is_write:
                yield use.operand, "write"


def _flops(each: Instruction, cost: Cost) -> Iterator[tuple[str, Any]]:
    adjusted = cost.flops * _relative(each)
    yield "hardware_flops", cost.flops
    yield "adjusted_hardware_flops", adjusted
    yield "matmul_instruction_count", cost.instructions
    if isinstance(each, TensorTranspose) or (isinstance(each, Matmul) and each.is_transpose):
        yield "transpose_flops", cost.flops
        yield "adjusted_transpose_flops", adjusted


def _relative(each: Instruction) -> float:
    """Multiplier of Neuron Explorer: BF16 1, FP32 4, FP8 in pairs 0.5, MX 0.25."""
    if isinstance(each, Matmul):
        passes = each.fp32_passes
        doubled = each.perf_mode.name == "DOUBLE_ROW"
        return passes * (0.5 if doubled else 1.0)
    if isinstance(each, MatmulMX):
        return 0.25
    assert isinstance(each, TensorTranspose)
    return 4.0 if bytes_of(each.data.element_type) == 4 else 1.0


def _transfer(cost: Cost, platform: Platform) -> Iterator[tuple[str, Any]]:
    asked = cost.transfer
    assert asked is not None
    engines = platform.core.dma.engines
    yield "dma_transfer_count", 1
    yield "dma_transfer_total_bytes", asked.nbytes
    yield "dma_work_ns", asked.engine_ns * asked.engines / engines
    yield "dma_ideal_ns", asked.nbytes / (platform.dma_bytes_per_ns * engines)


def _nbytes(access: Access, cost: Cost) -> int:
    """Bytes of an access; of a table, or of what is scattered into, only the rows that move."""
    if cost.transfer is None or access.nbytes <= _WIDEST * cost.transfer.nbytes:
        return access.nbytes
    return cost.transfer.nbytes
