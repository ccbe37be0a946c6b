"""Lower bounds of a program's time: peak rates of the hardware, and nothing else.

They use no cost rule and no fitted constant, so a schedule below them is wrong. Bounds are of one
logical core: two physical cores share its work at LNC 2.

* Tensor engine: 2 · K · M · N operations over the peak of the operands' format.
* Element-wise engines: elements of a partition over the widest documented path.
* DMA: bytes over the sustained rate of the core's 16 engines; HBM: bytes over its bandwidth.
* Network: what a rank sends over the rate of its DMA engines, through which it must go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program import collective as collectives
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction, Role
from neuronjax.program.operand import Access, Memory
from neuronjax.program.operators import PerformanceMode
from neuronjax.program.program import Call, If, Loop, Node, Program, While
from neuronjax.program.tensor_engine import Matmul, MatmulMX
from neuronjax.program.walk import children
from neuronjax.timing.encoding import Assumptions, taken
from neuronjax.timing.platform import GIGA, Platform

FASTEST_LANES: Mapping[Engine, Mapping[int, float]] = {
    # NKI ISA 2.26: N/2 cycles at best on version 2; performance modes and N/4 later.
    Engine.VECTOR: {2: 2, 3: 4, 4: 4},
    # A processor has 64 lanes of 8 bit for its 16 partitions.
    Engine.GPSIMD: {2: 4, 3: 4, 4: 4},
    Engine.SCALAR: {2: 1, 3: 1, 4: 2},
}
"""Elements per lane and cycle at best, by version of the core."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Lower bounds in ns, by resource: engines, "dma", "hbm", "network"."""

    bounds_ns: Mapping[str, float]

    @property
    def bound_ns(self) -> float:
        """The greatest of the bounds, in ns."""
        return max(self.bounds_ns.values(), default=0.0)

    @property
    def limit(self) -> str:
        """The resource with the greatest bound."""
        return max(self.bounds_ns, key=lambda name: self.bounds_ns[name], default="nothing")


def _accesses(instruction: Instruction, *, writes: bool) -> list[Access]:
    uses = (use for use in instruction.uses() if use.field != "index")
    return [
        use.operand
        for use in uses
        if isinstance(use.operand, Access)
        and (use.role.is_write if writes else use.role is Role.READ)
    ]


def _matmul_ns(instruction: Matmul | MatmulMX, platform: Platform) -> float:
    spec = platform.core.tensor
    names = (instruction.stationary.element_type.name, instruction.moving.element_type.name)
    rate = max(float(spec.rates.get(name, max(spec.rates.values()))) for name in names)
    rows = min(instruction.stationary.partitions, spec.rows)
    columns = min(instruction.stationary.free_elements, spec.columns)
    moving = instruction.moving.free_elements
    if isinstance(instruction, Matmul):
        if instruction.fp32_passes > 1:
            # Multiplying by zeros and ones, and transposes, take half of the passes.
            halves = instruction.fp32_passes == 2 or instruction.is_transpose
            rate = float(spec.rates["float32"]) * (2 if halves else 1)
        elif instruction.perf_mode is PerformanceMode.DOUBLE_ROW:
            rows, columns, moving = 2 * rows, columns // 2, moving // 2
        else:
            rate = min(rate, 1.0)
    else:
        rows *= 4
    peak = 2 * spec.rows * spec.columns * spec.clock_hz * rate
    return 2 * rows * columns * moving / peak * GIGA


def _elements_ns(instruction: Instruction, platform: Platform) -> float:
    engine = instruction.engine
    if engine is None or engine not in FASTEST_LANES:
        return 0.0
    written = [access.free_elements for access in _accesses(instruction, writes=True)]
    fastest = FASTEST_LANES[engine][platform.core.version]
    return platform.ns(min(written, default=0) / fastest, engine)


def _dma_bytes(instruction: DmaInstruction) -> tuple[int, int]:
    """Bytes that arrive at least, and bytes that HBM reads and writes for them."""
    ends = [*_accesses(instruction, writes=True), *_accesses(instruction, writes=False)]
    payload = min((access.nbytes for access in ends), default=0)
    sides = min(2, sum(access.memory is Memory.HBM for access in ends))
    return payload, payload * sides


def _sent(instruction: Any) -> float:
    """Bytes that a rank sends at least."""
    groups = getattr(instruction, "groups", ((0, 1),))
    ranks = len(set(max(groups, key=len, default=())))
    share = (ranks - 1) / ranks if ranks > 1 else 0.0
    return _SENT[type(instruction)](instruction) * share


def _read(instruction: Any) -> int:
    return sum(access.nbytes for access in instruction.srcs)


def _written(instruction: Any) -> int:
    return sum(access.nbytes for access in instruction.dsts)


_SENT: Mapping[type[Instruction], Callable[[Any], float]] = {
    collectives.AllReduce: _read,
    collectives.ReduceScatter: _read,
    collectives.AllToAll: _read,
    collectives.AllGather: _written,
    collectives.Permute: lambda instruction: 0.0,
    collectives.RingPermute: lambda instruction: 0.0,
    collectives.UnevenAllGather: lambda instruction: 0.0,
    collectives.UnevenAllToAll: lambda instruction: 0.0,
}
"""Bytes of the tensor of which every rank sends what is not its own."""


def _leaves(
    nodes: tuple[Node, ...], program: Program, assumptions: Assumptions, times: int
) -> Iterator[tuple[Instruction, int]]:
    for node in nodes:
        if isinstance(node, Instruction):
            yield node, times
        elif isinstance(node, Call):
            bodies = {function.name: function.body for function in program.functions}
            yield from _leaves(bodies[node.function], program, assumptions, times)
        elif isinstance(node, If):
            yield from _leaves(taken(node), program, assumptions, times)
        else:
            trips = assumptions.trips_of(node) if isinstance(node, Loop | While) else 1
            yield from _leaves(children(node), program, assumptions, times * trips)


def roofline(
    program: Program,
    platform: Platform | None = None,
    *,
    assumptions: Assumptions | None = None,
) -> Roofline:
    """Lower bounds of a program's time on a platform (None: the one that it is for)."""
    platform = platform or Platform.of(program)
    bounds = {engine.value: 0.0 for engine in FASTEST_LANES} | {Engine.TENSOR.value: 0.0}
    payloads = hbm = sent = 0.0
    for instruction, times in _leaves(program.body, program, assumptions or Assumptions(), 1):
        if isinstance(instruction, Matmul | MatmulMX):
            bounds[Engine.TENSOR.value] += times * _matmul_ns(instruction, platform)
        elif isinstance(instruction, DmaInstruction):
            payload, traffic = _dma_bytes(instruction)
            payloads += times * payload
            hbm += times * traffic
        elif type(instruction) in _SENT:
            sent += times * _sent(instruction)
        elif instruction.engine is not None and instruction.engine.value in bounds:
            bounds[instruction.engine.value] += times * _elements_ns(instruction, platform)
    cores = platform.lnc
    dma = platform.core.dma.engines * platform.dma_bytes_per_ns
    bounds = {name: bound / cores for name, bound in bounds.items()}
    bounds["dma"] = payloads / dma / cores
    bounds["hbm"] = hbm / platform.hbm_bytes_per_ns / cores
    bounds["network"] = sent / dma / cores
    return Roofline({name: bound for name, bound in bounds.items() if math.isfinite(bound)})
