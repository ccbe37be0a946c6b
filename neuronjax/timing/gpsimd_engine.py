"""Cost of what runs on GpSimd's eight processors, each of which serves 16 partitions.

A processor reads 32 bit per partition and cycle, and computes on 16 lanes of 32 bit, 32 of 16 or 64
of 8 (nki/guides/architecture/trainium_inferentia2_arch.rst). Every instruction adds 150 cycles (NKI
ISA, edition 2.26). Cycles of C++ operators are estimates from the number of vector instructions;
nothing is published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program import gpsimd_engine as program
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory
from neuronjax.program.operators import AluOp, CustomFunction
from neuronjax.timing.cost import Cost, Rule, sequencer
from neuronjax.timing.platform import Platform
from neuronjax.timing.walks import longest

_WORD = 4
"""Bytes that a processor reads from a partition in a cycle."""

_RSQRT_CYCLES = 4
"""NKI API common fields: a fourth of the Scalar engine's throughput."""

_LONG = frozenset({
    CustomFunction.DIVIDE, CustomFunction.REMAINDER, CustomFunction.CBRT,
    CustomFunction.COUNT_LEADING_ZEROS, CustomFunction.POPCNT, CustomFunction.MULTIPLY_HIGH,
})  # fmt: skip
_TRANSCENDENTAL = frozenset({
    CustomFunction.ATAN2, CustomFunction.COSINE, CustomFunction.SINE, CustomFunction.TAN,
    CustomFunction.EXPONENTIAL_MINUS_ONE, CustomFunction.LOG_PLUS_ONE, CustomFunction.POWER,
})  # fmt: skip
_CYCLES = {"simple": 1, "long": 12, "transcendental": 40}
"""Vector instructions of one function on a register of lanes, by class."""


def instruction_cost(platform: Platform, cycles: float) -> Cost:
    """150 cycles and those of the elements."""
    overhead = platform.timings.engines.gpsimd_overhead_cycles
    latency = platform.calibration.engine_latency_cycles
    return Cost(
        issue_ns=platform.ns(overhead + cycles, Engine.GPSIMD),
        latency_ns=platform.ns(latency, Engine.GPSIMD),
        instructions=1,
    )


def _reads(access: Access) -> float:
    """Cycles to read or write an access: a word of 32 bit per partition and cycle."""
    return access.free_elements * bytes_of(access.element_type) / _WORD


def elementwise(instruction: Any, platform: Platform) -> Cost:
    """An instruction of several engines on this one: its operands one after the other."""
    streams = [access for access in instruction.accesses() if access.memory is not Memory.HBM]
    most = longest(platform, *streams)
    cycles = math.fsum(
        max(_reads(access), access.free_elements)
        for use, access in ((use, use.operand) for use in instruction.uses() if use.role.is_read)
        if isinstance(access, Access)
    )
    ops = (getattr(instruction, name, None) for name in ("op", "op0", "op1"))
    if AluOp.RSQRT in tuple(ops):
        cycles *= _RSQRT_CYCLES
    return instruction_cost(platform, max(most, cycles))


def _positions(instruction: Any, platform: Platform) -> Cost:
    """`iota` and `affine_select`: 150 + N cycles."""
    elements = longest(platform, instruction.dst)
    return instruction_cost(platform, elements)


def _partition_reduce(instruction: program.PartitionReduce, platform: Platform) -> Cost:
    """Each processor reduces its 16 partitions, then the eight results meet."""
    return instruction_cost(platform, 2 * _reads(instruction.data))


def _local_gather(instruction: program.LocalGather, platform: Platform) -> Cost:
    """150 + indices · e / C cycles, C = min(4 / bytes, e) · 4e / (28 + 4e) elements per cycle.

    NKI ISA, edition 2.26, prints the reciprocal of C; more elements per index would cost less then.
    """
    per_index = max(1, instruction.elements_per_index)
    indices = instruction.index.free_elements * min(instruction.index.partitions, 16)
    if instruction.valid_indices is not None:
        indices = max(0, min(indices, instruction.valid_indices))
    ideal = min(_WORD / bytes_of(instruction.src.element_type), per_index)
    rate = ideal * 4 * per_index / (28 + 4 * per_index)
    return instruction_cost(platform, indices * per_index / rate)


def _gather(instruction: program.Gather, platform: Platform) -> Cost:
    """The cost of a gather, one element after the other: an index, a read and a write."""
    elements = longest(platform, instruction.indices)
    return instruction_cost(platform, 3 * elements)


def _scan(instruction: Any, platform: Platform) -> Cost:
    """Two passes over the elements, one lane."""
    elements = max(access.free_elements for access in instruction.accesses())
    return instruction_cost(platform, 2 * elements)


def _top_k(instruction: program.TopK, platform: Platform) -> Cost:
    """4n + K cycles per partition (NKI ISA topk); n values lie over 16 partitions."""
    return instruction_cost(platform, 4 * instruction.n / 16 + instruction.values.free_elements)


def _custom_op(instruction: program.CustomOp, platform: Platform) -> Cost:
    """Reads, writes, and the function's instructions on registers of 16 words.

    A register of 512 bit holds one word of each of the 16 partitions; 64-bit integers take two
    registers and four products.
    """
    sources = [src for src in instruction.srcs if isinstance(src, Access)]
    size = max(bytes_of(access.element_type) for access in (*sources, instruction.dst))
    registers = instruction.dst.free_elements * max(1.0, size / _WORD)
    kind = (
        "transcendental"
        if instruction.function in _TRANSCENDENTAL
        else ("long" if instruction.function in _LONG else "simple")
    )
    compute = registers * _CYCLES[kind] * (2 if size == 8 else 1)
    elements = math.fsum(
        max(_reads(access), access.free_elements) for access in (*sources, instruction.dst)
    )
    return instruction_cost(platform, elements + compute)


def _core_barrier(instruction: program.CoreBarrier, platform: Platform) -> Cost:
    """A semaphore of the other core, there and back."""
    return sequencer(platform, instruction.engine) + Cost(
        latency_ns=2 * platform.calibration.wake_ns
    )


COSTS: Mapping[type[Instruction], Rule] = {
    program.Iota: _positions,
    program.AffineSelect: _positions,
    program.PartitionReduce: _partition_reduce,
    program.LocalGather: _local_gather,
    program.Gather: _gather,
    program.NonzeroWithCount: _scan,
    program.TopK: _top_k,
    program.SequenceBounds: _scan,
    program.CustomOp: _custom_op,
    program.CoreBarrier: _core_barrier,
}
