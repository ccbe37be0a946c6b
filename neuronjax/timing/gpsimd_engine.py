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


def instruction(platform: Platform, cycles: float) -> Cost:
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


def elementwise(each: Any, platform: Platform) -> Cost:
    """An instruction of several engines on this one: its operands one after the other."""
    streams = [access for access in each.accesses() if access.memory is not Memory.HBM]
    most = longest(platform, *streams)
    cycles = math.fsum(
        max(_reads(access), access.free_elements)
        for use, access in ((use, use.operand) for use in each.uses() if use.role.is_read)
        if isinstance(access, Access)
    )
    ops = (getattr(each, name, None) for name in ("op", "op0", "op1"))
    if AluOp.RSQRT in tuple(ops):
        cycles *= _RSQRT_CYCLES
    return instruction(platform, max(most, cycles))


def _positions(each: Any, platform: Platform) -> Cost:
    """`iota` and `affine_select`: 150 + N cycles."""
    elements = longest(platform, each.dst)
    return instruction(platform, elements)


def _partition_reduce(each: program.PartitionReduce, platform: Platform) -> Cost:
    """Each processor reduces its 16 partitions, then the eight results meet."""
    return instruction(platform, 2 * _reads(each.data))


def _local_gather(each: program.LocalGather, platform: Platform) -> Cost:
    """150 + indices · e / C cycles, C = min(4 / bytes, e) · 4e / (28 + 4e) elements per cycle.

    NKI ISA, edition 2.26, prints the reciprocal of C; more elements per index would cost less then.
    """
    per_index = max(1, each.elements_per_index)
    indices = each.index.free_elements * min(each.index.partitions, 16)
    if each.valid_indices is not None:
        indices = max(0, min(indices, each.valid_indices))
    ideal = min(_WORD / bytes_of(each.src.element_type), per_index)
    rate = ideal * 4 * per_index / (28 + 4 * per_index)
    return instruction(platform, indices * per_index / rate)


def _gather(each: program.Gather, platform: Platform) -> Cost:
    """One element after the other: an index, a read and a write."""
    elements = longest(platform, each.indices)
    return instruction(platform, 3 * elements)


def _scan(each: Any, platform: Platform) -> Cost:
    """Two passes over the elements, one lane."""
    elements = max(access.free_elements for access in each.accesses())
    return instruction(platform, 2 * elements)


def _top_k(each: program.TopK, platform: Platform) -> Cost:
    """4n + K cycles per partition (NKI ISA topk); n values lie over 16 partitions."""
    return instruction(platform, 4 * each.n / 16 + each.values.free_elements)


def _custom_op(each: program.CustomOp, platform: Platform) -> Cost:
    """Reads, writes, and the function's instructions on registers of 16 words.

    A register of 512 bit holds one word of each of the 16 partitions; 64-bit integers take two
    registers and four products.
    """
    sources = [src for src in each.srcs if isinstance(src, Access)]
    size = max(bytes_of(access.element_type) for access in (*sources, each.dst))
    registers = each.dst.free_elements * max(1.0, size / _WORD)
    kind = (
        "transcendental"
        if each.function in _TRANSCENDENTAL
        else ("long" if each.function in _LONG else "simple")
    )
    compute = registers * _CYCLES[kind] * (2 if size == 8 else 1)
    moved = math.fsum(max(_reads(access), access.free_elements) for access in (*sources, each.dst))
    return instruction(platform, moved + compute)


def _core_barrier(each: program.CoreBarrier, platform: Platform) -> Cost:
    """A semaphore of the other core, there and back."""
    return sequencer(platform, each.engine) + Cost(latency_ns=2 * platform.calibration.wake_ns)


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
