"""Cost of matrix products and transposes.

A product issues one row of `moving` per cycle, max(N, 64) cycles in all; loading the next
stationary matrix runs in the background at up to four columns per cycle and is paid only where it
takes longer (architecture guide: throughput is the greater of both). FP32 goes over the array four
times, in two instructions.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.machine.specs import Engine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access
from neuronjax.program.operators import PerformanceMode
from neuronjax.program.tensor_engine import Matmul, MatmulMX, TensorTranspose
from neuronjax.timing.cost import Cost, Rule
from neuronjax.timing.platform import Platform


def load_stationary(columns: int, platform: Platform) -> Cost:
    """LoadStationary alone: at least 64 cycles, and an access to SBUF in memory cycles."""
    timings = platform.timings.engines
    cycles = max(columns / timings.stationary_columns_per_cycle, timings.minimum_interval_cycles)
    return Cost(
        issue_ns=platform.ns(cycles, Engine.TENSOR),
        latency_ns=platform.ns(timings.access_cycles, Engine.SYNC),
        instructions=1,
    )


def _product(
    platform: Platform, rows: int, columns: int, moving: int, passes: float, instructions: int
) -> Cost:
    """`moving` rows against `rows` × `columns` stationary cells, `passes` times."""
    timings = platform.timings.engines
    load = columns / timings.stationary_columns_per_cycle
    interval = max(moving, timings.minimum_interval_cycles, load)
    issue = platform.ns(interval * passes, Engine.TENSOR)
    return Cost(
        issue_ns=issue,
        # Results of a multi-pass product follow the last pass; earlier ones overlap.
        latency_ns=platform.calibration.tensor_latency_ns,
        flops=2 * rows * columns * moving,
        instructions=instructions,
    )


def _sizes(stationary: Access, moving: Access) -> tuple[int, int, int]:
    return stationary.partitions, stationary.free_elements, moving.free_elements


def _matmul(instruction: Matmul, platform: Platform) -> Cost:
    rows, columns, moving = _sizes(instruction.stationary, instruction.moving)
    passes = instruction.fp32_passes
    if instruction.is_transpose and passes > 1 and platform.core.version >= 3:
        passes //= 2  # nki/trainium2_arch: FP32 transposes at twice the speed of products
    if instruction.perf_mode is PerformanceMode.DOUBLE_ROW:
        rows, columns, moving = 2 * rows, columns // 2, moving // 2
    return _product(
        platform, rows, columns, moving, passes, 2 if instruction.fp32_passes == 4 else 1
    )


def _matmul_mx(instruction: MatmulMX, platform: Platform) -> Cost:
    rows, columns, moving = _sizes(instruction.stationary, instruction.moving)
    return _product(platform, 4 * rows, columns, moving, 1, 1)


def _transpose(instruction: TensorTranspose, platform: Platform) -> Cost:
    """The data is stationary, the identity moves: as many rows as the data has partitions."""
    passes = 1
    if bytes_of(instruction.data.element_type) == 4:
        passes = 2 if platform.core.version >= 3 else 4
    rows = instruction.data.partitions
    return _product(platform, rows, instruction.data.free_elements, rows, passes, 1)


COSTS: Mapping[type[Instruction], Rule] = {
    Matmul: _matmul,
    MatmulMX: _matmul_mx,
    TensorTranspose: _transpose,
}
