"""Element-wise instructions of the Vector engine; several run on Scalar or GpSimd as well.

Arithmetic is in float32, whatever the types of operands; bit operators take unconverted integers.
The accumulator registers are shared by all instructions with a `reduce_cmd`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, UPDATE, WRITE, Instruction, updates
from neuronjax.program.operand import Access, Immediate, Scalar
from neuronjax.program.operators import AluOp, ReduceCommand

_VECTOR = (Engine.VECTOR,)
_VECTOR_GPSIMD = (Engine.VECTOR, Engine.GPSIMD)
_ELEMENTWISE = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
_FLOAT32_MIN = Immediate(-3.4028234663852886e38)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorTensor(Instruction):
    """dst = data1 op data2. On GpSimd, 32-bit integers are exact."""

    mnemonic: ClassVar[str] = "tensor_tensor"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR_GPSIMD
    page: ClassVar[str] = "NKI ISA tensor_tensor"

    dst: Access = field(metadata=WRITE)
    data1: Access = field(metadata=READ)
    data2: Access = field(metadata=READ)
    op: AluOp
    engine: Engine = Engine.VECTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorScalar(Instruction):
    """dst = (data op0 operand0) op1 operand1; `reverse` swaps the arguments of an operator."""

    mnemonic: ClassVar[str] = "tensor_scalar"
    engines: ClassVar[tuple[Engine, ...]] = _ELEMENTWISE
    page: ClassVar[str] = "NKI ISA tensor_scalar"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    op0: AluOp
    operand0: Scalar | None = field(default=None, metadata=READ)
    reverse0: bool = False
    op1: AluOp | None = None
    operand1: Scalar | None = field(default=None, metadata=READ)
    reverse1: bool = False
    engine: Engine = Engine.VECTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarTensorTensor(Instruction):
    """dst = (data op0 operand0) op1 operand1, operand1 a tile."""

    mnemonic: ClassVar[str] = "scalar_tensor_tensor"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA scalar_tensor_tensor"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    op0: AluOp
    operand0: Scalar = field(metadata=READ)
    op1: AluOp
    operand1: Access = field(metadata=READ)
    reverse0: bool = False
    reverse1: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorReduce(Instruction):
    """dst = op over the last `axes` free dimensions of data, negated if `negate`."""

    mnemonic: ClassVar[str] = "tensor_reduce"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA tensor_reduce"

    dst: Access = field(metadata=WRITE)
    op: AluOp
    data: Access = field(metadata=READ)
    axes: int = 1
    negate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorScalarReduce(Instruction):
    """dst = data op0 operand0, or operand0 op0 data; the accumulator reduces dst along its free
    dimensions."""

    mnemonic: ClassVar[str] = "tensor_scalar_reduce"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA tensor_scalar_reduce"

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorScalarCumulative(Instruction):
    """dst[i] = op1(op0(src[i], imm0), dst[i - 1]); the accumulator holds the first predecessor."""

    mnemonic: ClassVar[str] = "tensor_scalar_cumulative"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA tensor_scalar_cumulative"

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    op0: AluOp
    op1: AluOp
    imm0: Scalar = field(metadata=READ)
    imm1: Scalar | None = field(default=None, metadata=READ)
    reduce_cmd: ReduceCommand = ReduceCommand.RESET_REDUCE


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorTensorScan(Instruction):
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]; before the first stands `initial`."""

    mnemonic: ClassVar[str] = "tensor_tensor_scan"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA tensor_tensor_scan"

    dst: Access = field(metadata=WRITE)
    data0: Access = field(metadata=READ)
    data1: Access = field(metadata=READ)
    initial: Scalar = field(metadata=READ)
    op0: AluOp
    op1: AluOp
    reverse0: bool = False
    reverse1: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCopy(Instruction):
    """dst = src: bit by bit if the types agree, else by way of float32."""

    mnemonic: ClassVar[str] = "tensor_copy"
    engines: ClassVar[tuple[Engine, ...]] = _ELEMENTWISE
    page: ClassVar[str] = "NKI ISA tensor_copy"

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    engine: Engine = Engine.VECTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyPredicated(Instruction):
    """dst = src where predicate is not 0 (is 0 if reversed); the rest of dst keeps its values."""

    mnemonic: ClassVar[str] = "tensor_copy_predicated"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA tensor_copy_predicated"

    dst: Access = field(metadata=UPDATE)
    src: Scalar = field(metadata=READ)
    predicate: Access = field(metadata=READ)
    reverse_pred: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectReduce(Instruction):
    """dst = on_true where predicate, else on_false; the accumulator takes the maximum of dst."""

    mnemonic: ClassVar[str] = "select_reduce"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA select_reduce"

    dst: Access = field(metadata=WRITE)
    predicate: Access = field(metadata=READ)
    on_true: Access = field(metadata=READ)
    on_false: Scalar = field(metadata=READ)
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE
    reduce_op: AluOp = AluOp.MAXIMUM
    reverse_pred: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeSelect(Instruction):
    """dst = on_true where the position passes both comparisons, else `on_false`.

    The position is range_start plus the flat free index.
    """

    mnemonic: ClassVar[str] = "range_select"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA range_select"

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Memset(Instruction):
    """dst = value."""

    mnemonic: ClassVar[str] = "memset"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR_GPSIMD
    page: ClassVar[str] = "NKI ISA memset"

    dst: Access = field(metadata=WRITE)
    value: Immediate = field(metadata=READ)
    engine: Engine = Engine.VECTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchNormStats(Instruction):
    """dst = count, mean and variance * count of the even elements, then of the odd ones."""

    mnemonic: ClassVar[str] = "bn_stats"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA bn_stats"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchNormAggregate(Instruction):
    """dst = mean and variance from triples that `bn_stats` wrote."""

    mnemonic: ClassVar[str] = "bn_aggr"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA bn_aggr"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reciprocal(Instruction):
    """dst = 1 / data, more precise than the Scalar engine's function."""

    mnemonic: ClassVar[str] = "reciprocal"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA reciprocal"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential(Instruction):
    """dst = exp(src - max_value); the accumulator adds dst up."""

    mnemonic: ClassVar[str] = "exponential"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA exponential"

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    max_value: Scalar = field(default=Immediate(0.0), metadata=READ)
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE
    reduce_init: Scalar | None = field(default=None, metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class Max8(Instruction):
    """dst = the 8 greatest elements of each partition of src, descending."""

    mnemonic: ClassVar[str] = "max8"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA max8"

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class FindIndex8(Instruction):
    """dst = position at which each of 8 values first occurs in its partition, or all ones."""

    mnemonic: ClassVar[str] = "nc_find_index8"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA nc_find_index8"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    vals: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchReplace8(Instruction):
    """dst = data with the first occurrence of each of 8 values replaced; dst_idx = positions."""

    mnemonic: ClassVar[str] = "nc_match_replace8"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA nc_match_replace8"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    vals: Access = field(metadata=READ)
    imm: Immediate = field(metadata=READ)
    dst_idx: Access | None = field(default=None, metadata=WRITE)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamShuffle(Instruction):
    """dst[q + i] = src[q + mask[i]] in every quadrant q of 32 partitions; 255 leaves dst[q + i].

    src has the partitions that the mask takes, such as 1 that all of dst take."""

    mnemonic: ClassVar[str] = "nc_stream_shuffle"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA nc_stream_shuffle"

    dst: Access = field(metadata=updates(unless="is_complete"))
    src: Access = field(metadata=READ)
    mask: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every partition of dst is written."""
        return 255 not in self.mask


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorTranspose(Instruction):
    """dst = dataᵀ of at most 32 × 32 elements, bit by bit."""

    mnemonic: ClassVar[str] = "vector_transpose"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA nc_transpose"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeMX(Instruction):
    """dst, dst_scale = src in blocks of 8 partitions × 4 elements with a common scale."""

    mnemonic: ClassVar[str] = "quantize_mx"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA quantize_mx"

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    dst_scale: Access = field(metadata=WRITE)


INSTRUCTIONS: tuple[type[Instruction], ...] = (
    TensorTensor, TensorScalar, ScalarTensorTensor, TensorReduce, TensorScalarReduce,
    TensorScalarCumulative, TensorTensorScan, TensorCopy, CopyPredicated, SelectReduce, RangeSelect,
    Memset, BatchNormStats, BatchNormAggregate, Reciprocal, Exponential, Max8, FindIndex8,
    MatchReplace8, StreamShuffle, VectorTranspose, QuantizeMX,
)  # fmt: skip
