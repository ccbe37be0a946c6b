"""Instructions of the Tensor engine: matrix products and transposes into PSUM."""

from __future__ import annotations

from dataclasses import field

from neuronjax.formats import FLOAT32
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Flag
from neuronjax.program.instruction import READ, WRITE, Instruction, instruction, updates
from neuronjax.program.operand import Access
from neuronjax.program.operators import PerformanceMode


@instruction("nc_matmul", (Engine.TENSOR,))
class Matmul(Instruction):
    """dst = stationaryᵀ @ moving, or added to dst unless `start`.

    stationary [K, M], moving [K, N], dst [M, N] in PSUM; with double row [K/2, 2, M], [K/2, 2, N].
    `start` opens an accumulation group and overwrites; `stop` marks its last product, and a product
    that `resumes` may be added to a group that has ended. `tile_size` and `tile_position` (rows,
    columns) select a part of the array; None: all of it.
    """

    dst: Access = field(metadata=updates(unless="start"))
    stationary: Access = field(metadata=READ)
    moving: Access = field(metadata=READ)
    start: Flag = True
    stop: Flag = True
    resumes: bool = False
    stationary_onezero: bool = False
    moving_onezero: bool = False
    is_transpose: bool = False
    perf_mode: PerformanceMode = PerformanceMode.NONE
    tile_position: tuple[int, int] | None = None
    tile_size: tuple[int, int] | None = None

    @property
    def fp32_passes(self) -> int:
        """Passes over the array: 4 for FP32 operands, 2 if one of them has zeros and ones only."""
        if FLOAT32 not in (self.stationary.element_type, self.moving.element_type):
            return 1
        return 2 if self.stationary_onezero or self.moving_onezero else 4


@instruction("nc_matmul_mx", (Engine.TENSOR,))
class MatmulMX(Instruction):
    """dst = stationaryᵀ @ moving of packed block-scaled operands, or added to dst unless `start`.

    stationary [K/4, M] and moving [K/4, N] of packed type. Scales: one per 8 partitions and packed
    element, four scale partitions in each quadrant of 32.
    """

    dst: Access = field(metadata=updates(unless="start"))
    stationary: Access = field(metadata=READ)
    moving: Access = field(metadata=READ)
    stationary_scale: Access = field(metadata=READ)
    moving_scale: Access = field(metadata=READ)
    start: Flag = True
    stop: Flag = True
    resumes: bool = False
    tile_position: tuple[int, int] | None = None
    tile_size: tuple[int, int] | None = None


@instruction("tensor_transpose", (Engine.TENSOR,), page="NKI ISA nc_transpose")
class TensorTranspose(Instruction):
    """dst = dataᵀ through the array: data [P, F] in SBUF, dst [F, P] in PSUM.

    Before NeuronCore-v3 it is a product with the identity: NaN and infinity spread.
    """

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
