"""Element-wise instructions of the Vector engine; several run on Scalar or GpSimd as well.

Arithmetic is in float32, whatever the types of operands; bit operators take unconverted integers.
The accumulator registers are shared by all instructions with a `reduce_cmd`.
"""

from __future__ import annotations

from dataclasses import field

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, UPDATE, WRITE, Instruction, instruction, updates
from neuronjax.program.operand import Access, Immediate, Scalar
from neuronjax.program.operators import AluOp, ReduceCommand

_VECTOR = (Engine.VECTOR,)
_VECTOR_GPSIMD = (Engine.VECTOR, Engine.GPSIMD)
_ELEMENTWISE = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
_FLOAT32_MIN = Immediate(-3.4028234663852886e38)


@instruction("tensor_tensor", _VECTOR_GPSIMD)
class TensorTensor(Instruction):
    """dst = data1 op data2. On GpSimd, 32-bit integers are exact."""

    dst: Access = field(metadata=WRITE)
    data1: Access = field(metadata=READ)
    data2: Access = field(metadata=READ)
    op: AluOp
    engine: Engine = Engine.VECTOR


@instruction("tensor_scalar", _ELEMENTWISE)
class TensorScalar(Instruction):
    """dst = (data op0 operand0) op1 operand1; `reverse` swaps the arguments of an operator."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    op0: AluOp
    operand0: Scalar | None = field(default=None, metadata=READ)
    reverse0: bool = False
    op1: AluOp | None = None
    operand1: Scalar | None = field(default=None, metadata=READ)
    reverse1: bool = False
    engine: Engine = Engine.VECTOR


@instruction("scalar_tensor_tensor", _VECTOR)
class ScalarTensorTensor(Instruction):
    """dst = (data op0 operand0) op1 operand1, operand1 a tile."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    op0: AluOp
    operand0: Scalar = field(metadata=READ)
    op1: AluOp
    operand1: Access = field(metadata=READ)
    reverse0: bool = False
    reverse1: bool = False


@instruction("tensor_reduce", _VECTOR)
class TensorReduce(Instruction):
    """dst = op over the last `axes` free dimensions of data, negated if `negate`."""

    dst: Access = field(metadata=WRITE)
    op: AluOp
    data: Access = field(metadata=READ)
    axes: int = 1
    negate: bool = False


@instruction("tensor_scalar_reduce", _VECTOR)
class TensorScalarReduce(Instruction):
    """dst = data op0 operand0, or operand0 op0 data; the accumulator reduces dst along its free
    dimensions."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    op0: AluOp
    operand0: Scalar | None = field(default=None, metadata=READ)
    reverse0: bool = False
    reduce_op: AluOp
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.RESET_REDUCE
    reduce_init: Scalar | None = field(default=None, metadata=READ)
    reduce_res_negate: bool = False


@instruction("tensor_scalar_cumulative", _VECTOR)
class TensorScalarCumulative(Instruction):
    """dst[i] = op1(op0(src[i], imm0), dst[i - 1]); the accumulator holds the first predecessor."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    op0: AluOp
    op1: AluOp
    imm0: Scalar = field(metadata=READ)
    imm1: Scalar | None = field(default=None, metadata=READ)
    reduce_cmd: ReduceCommand = ReduceCommand.RESET_REDUCE


@instruction("tensor_tensor_scan", _VECTOR)
class TensorTensorScan(Instruction):
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]; before the first stands `initial`."""

    dst: Access = field(metadata=WRITE)
    data0: Access = field(metadata=READ)
    data1: Access = field(metadata=READ)
    initial: Scalar = field(metadata=READ)
    op0: AluOp
    op1: AluOp
    reverse0: bool = False
    reverse1: bool = False


@instruction("tensor_copy", _ELEMENTWISE)
class TensorCopy(Instruction):
    """dst = src: bit by bit if the types agree, else by way of float32."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    engine: Engine = Engine.VECTOR


@instruction("tensor_copy_predicated", _VECTOR)
class CopyPredicated(Instruction):
    """dst = src where predicate is not 0 (is 0 if reversed); the rest of dst keeps its values."""

    dst: Access = field(metadata=UPDATE)
    src: Scalar = field(metadata=READ)
    predicate: Access = field(metadata=READ)
    reverse_pred: bool = False


@instruction("select_reduce", _VECTOR)
class SelectReduce(Instruction):
    """dst = on_true where predicate, else on_false; the accumulator takes the maximum of dst."""

    dst: Access = field(metadata=WRITE)
    predicate: Access = field(metadata=READ)
    on_true: Access = field(metadata=READ)
    on_false: Scalar = field(metadata=READ)
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE
    reduce_op: AluOp = AluOp.MAXIMUM
    reverse_pred: bool = False


@instruction("range_select", _VECTOR)
class RangeSelect(Instruction):
    """dst = on_true where the position passes both comparisons, else `on_false`.

    The position is range_start plus the flat free index.
    """

    dst: Access = field(metadata=WRITE)
    on_true: Access = field(metadata=READ)
    comp_op0: AluOp
    comp_op1: AluOp
    bound0: Access = field(metadata=READ)
    bound1: Access = field(metadata=READ)
    reduce_cmd: ReduceCommand = ReduceCommand.RESET_REDUCE
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_op: AluOp = AluOp.MAXIMUM
    range_start: int = 0
    on_false: Immediate = field(default=_FLOAT32_MIN, metadata=READ)


@instruction("memset", _VECTOR_GPSIMD)
class Memset(Instruction):
    """dst = value."""

    dst: Access = field(metadata=WRITE)
    value: Immediate = field(metadata=READ)
    engine: Engine = Engine.VECTOR


@instruction("bn_stats", _VECTOR)
class BatchNormStats(Instruction):
    """dst = count, mean and variance * count of the even elements, then of the odd ones."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@instruction("bn_aggr", _VECTOR)
class BatchNormAggregate(Instruction):
    """dst = mean and variance from triples that `bn_stats` wrote."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@instruction("reciprocal", _VECTOR)
class Reciprocal(Instruction):
    """dst = 1 / data, more precise than the Scalar engine's function."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@instruction("exponential", _VECTOR)
class Exponential(Instruction):
    """dst = exp(src - max_value); the accumulator adds dst up."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    max_value: Scalar = field(default=Immediate(0.0), metadata=READ)
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE
    reduce_init: Scalar | None = field(default=None, metadata=READ)


@instruction("max8", _VECTOR)
class Max8(Instruction):
    """dst = the 8 greatest elements of each partition of src, descending."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)


@instruction("nc_find_index8", _VECTOR)
class FindIndex8(Instruction):
    """dst = position at which each of 8 values first occurs in its partition, or all ones."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    vals: Access = field(metadata=READ)


@instruction("nc_match_replace8", _VECTOR)
class MatchReplace8(Instruction):
    """dst = data with the first occurrence of each of 8 values replaced; dst_idx = positions."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    vals: Access = field(metadata=READ)
    imm: Immediate = field(metadata=READ)
    dst_idx: Access | None = field(default=None, metadata=WRITE)


@instruction("nc_stream_shuffle", _VECTOR)
class StreamShuffle(Instruction):
    """dst[q + i] = src[q + mask[i]] in every quadrant q of 32 partitions; 255 leaves dst[q + i].

    src has the partitions that the mask takes, such as 1 that all of dst take."""

    dst: Access = field(metadata=updates(unless="is_complete"))
    src: Access = field(metadata=READ)
    mask: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every partition of dst is written."""
        return 255 not in self.mask


@instruction("vector_transpose", _VECTOR, page="NKI ISA nc_transpose")
class VectorTranspose(Instruction):
    """dst = dataᵀ of at most 32 × 32 elements, bit by bit."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@instruction("quantize_mx", _VECTOR)
class QuantizeMX(Instruction):
    """dst, dst_scale = src in blocks of 8 partitions × 4 elements with a common scale."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    dst_scale: Access = field(metadata=WRITE)
