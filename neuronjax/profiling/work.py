"""The work of a kernel's instructions in one run, as named sums.

These names are those of Neuron Explorer's summary (tools/neuron-explorer, summary page):
``hardware_flops``, ``transpose_flops``, ``adjusted_…`` (cost relative to BF16), ``<memory>_read_``
and ``_write_bytes``, ``dma_transfer_count``, ``dma_transfer_total_bytes``, ``spill_save_bytes``,
``spill_reload_bytes``, ``input_queue_bytes``, ``output_queue_bytes``, ``weight_queue_bytes``. Our
own are ``dma_ideal_ns``, the time of the transfers at the sustained rate of all DMA engines, and
``dma_work_ns``, their time with start-up.
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
from neuronjax.timing.encoding import Compiled
from neuronjax.timing.platform import Platform

_QUEUES = {
    (Kind.ARGUMENT, "read"): "input_queue_bytes",
    (Kind.RESULT, "write"): "output_queue_bytes",
    (Kind.CONSTANT, "read"): "weight_queue_bytes",
    (Kind.SCRATCH, "read"): "spill_reload_bytes",
    (Kind.SCRATCH, "write"): "spill_save_bytes",
}
"""Kind of an HBM buffer and direction -> name of the sum."""

_WIDEST = 4
"""The largest factor by which a transfer's cast widens the bytes that it moves."""


Touched = Mapping[tuple[str, str], int]
"""The kernel's name of an HBM buffer, and "read" or "write" -> bytes."""


def work_of(compiled: Compiled, platform: Platform) -> tuple[Counter[str], Touched]:
    """The sums of a kernel, and the bytes that it moves from and to HBM buffers."""
    sums: Counter[str] = Counter()
    touched: Counter[tuple[str, str]] = Counter()
    rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
    for instruction, cost, times in rows:
        for name, value in _sums(instruction, cost, platform):
            sums[name] += value * times
        for access, way in _accesses(instruction):
            nbytes = _nbytes(access, cost) * times
            sums[f"{access.memory.value}_{way}_bytes"] += nbytes
            if access.memory is Memory.HBM:
                touched[access.buffer.name, way] += nbytes
    return sums, touched


def queues(touched: Touched, kinds: Mapping[str, Kind]) -> Counter[str]:
    """Bytes of HBM traffic by queue; `kinds` are keyed by the kernel's names of buffers."""
    sums: Counter[str] = Counter()
    for (name, way), nbytes in touched.items():
        queue = _QUEUES.get((kinds.get(name, Kind.SCRATCH), way))
        if queue is not None:
            sums[queue] += nbytes
    return sums


def _sums(instruction: Instruction, cost: Cost, platform: Platform) -> Iterator[tuple[str, Any]]:
    if cost.flops:
        yield from _flops(instruction, cost)
    if isinstance(instruction, DmaInstruction) and cost.transfer is not None:
        yield from _transfer(cost, platform)


def _accesses(instruction: Instruction) -> Iterator[tuple[Access, str]]:
    for use in instruction.uses():
        if isinstance(use.operand, Access):
            if use.role.is_read:
                yield use.operand, "read"
            if use.role.is_write:
                yield use.operand, "write"


def _flops(instruction: Instruction, cost: Cost) -> Iterator[tuple[str, Any]]:
    adjusted = cost.flops * _relative(instruction)
    yield "hardware_flops", cost.flops
    yield "adjusted_hardware_flops", adjusted
    yield "matmul_instruction_count", cost.instructions
    if isinstance(instruction, TensorTranspose) or (
        isinstance(instruction, Matmul) and instruction.is_transpose
    ):
        yield "transpose_flops", cost.flops
        yield "adjusted_transpose_flops", adjusted


def _relative(instruction: Instruction) -> float:
    """Neuron Explorer's cost relative to BF16: FP32 4, FP8 in pairs 0.5, MX 0.25."""
    if isinstance(instruction, Matmul):
        passes = instruction.fp32_passes
        doubled = instruction.perf_mode.name == "DOUBLE_ROW"
        return passes * (0.5 if doubled else 1.0)
    if isinstance(instruction, MatmulMX):
        return 0.25
    assert isinstance(instruction, TensorTranspose)
    return 4.0 if bytes_of(instruction.data.element_type) == 4 else 1.0


def _transfer(cost: Cost, platform: Platform) -> Iterator[tuple[str, Any]]:
    asked = cost.transfer
    assert asked is not None
    engines = platform.core.dma.engines
    yield "dma_transfer_count", 1
    yield "dma_transfer_total_bytes", asked.nbytes
    yield "dma_work_ns", asked.engine_ns * asked.engines / engines
    yield "dma_ideal_ns", asked.nbytes / (platform.dma_bytes_per_ns * engines)


def _nbytes(access: Access, cost: Cost) -> int:
    """Bytes of an access; for gathers and scatters only the rows that move count."""
    if cost.transfer is None or access.nbytes <= _WIDEST * cost.transfer.nbytes:
        return access.nbytes
    return cost.transfer.nbytes
