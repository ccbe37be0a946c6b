"""Cost of element-wise instructions, on the Vector engine and where else they run.

Cycles per instruction: NKI ISA, edition 2.26; N is the number of elements in a partition.
Performance modes of NeuronCore-v3 and later: nki/guides/architecture/trainium2_arch.rst. FP32 pairs
from SBUF take N cycles there, for the data path is two elements wide, and 2N before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuronjax.formats import Format
from neuronjax.machine.specs import Engine
from neuronjax.program import vector_engine as program
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory
from neuronjax.program.operators import AluOp
from neuronjax.timing import gpsimd_engine
from neuronjax.timing.cost import Cost, Rule, extra, streaming
from neuronjax.timing.platform import Platform
from neuronjax.timing.walks import is_dense, is_narrow, longest

Cycles = Callable[[Any, Platform], float]
"""Cycles of the Vector engine that the elements of an instruction take."""

_PAIRWISE = frozenset({AluOp.ADD, AluOp.SUBTRACT, AluOp.MULTIPLY})
_FAST_REDUCTIONS = frozenset({AluOp.ADD, AluOp.MAXIMUM})


def data(instruction: Instruction) -> tuple[Access, ...]:
    """The accesses that stream: all but single elements for each partition."""
    return tuple(access for access in instruction.accesses() if access.memory is not Memory.HBM)


def _plain(instruction: Instruction, platform: Platform) -> float:
    return longest(platform, *data(instruction))


def _times(factor: float) -> Cycles:
    return lambda instruction, platform: factor * _plain(instruction, platform)


def _in_sbuf(*accesses: Access) -> bool:
    return all(access.memory is Memory.SBUF for access in accesses)


def _tensor_tensor(instruction: program.TensorTensor, platform: Platform) -> float:
    elements = _plain(instruction, platform)
    operands = (instruction.data1, instruction.data2)
    narrow = all(is_narrow(access, platform) for access in (*operands, instruction.dst))
    if platform.core.reads_pairs:
        return elements / 2 if narrow and _in_sbuf(*operands) else elements
    dense = all(map(is_dense, operands))
    if instruction.data1.memory is not instruction.data2.memory:
        return elements
    fast = narrow and dense and _in_sbuf(*operands) and instruction.op in _PAIRWISE
    return elements if fast else 2 * elements


def _copied(instruction: Instruction, platform: Platform, dst: Access, src: Access) -> float:
    """`tensor_copy` and `tensor_scalar`: two or four elements per cycle from version 3; two where
    one side is FP8 without a mode of its own, for the data path is that wide."""
    elements = longest(platform, dst, src)
    if not platform.core.vector.wide or not (_in_sbuf(dst) or _in_sbuf(src)):
        return elements
    if not (is_narrow(dst, platform) and is_narrow(src, platform)):
        return elements / 2 if _is_short(dst) and _is_short(src) else elements
    return elements / (4 if _in_sbuf(dst, src) and is_dense(dst) and is_dense(src) else 2)


def _is_short(access: Access) -> bool:
    """Whether elements are floating-point numbers of at most two bytes."""
    return isinstance(access.element_type, Format) and bytes_of(access.element_type) <= 2


def _tensor_copy(instruction: program.TensorCopy, platform: Platform) -> float:
    return _copied(instruction, platform, instruction.dst, instruction.src)


def _tensor_scalar(instruction: program.TensorScalar, platform: Platform) -> float:
    return _copied(instruction, platform, instruction.dst, instruction.data)


def _scalar_tensor_tensor(instruction: program.ScalarTensorTensor, platform: Platform) -> float:
    elements = _plain(instruction, platform)
    if platform.core.reads_pairs or instruction.data.memory is not instruction.operand1.memory:
        return elements
    narrow = is_narrow(instruction.data, platform) and is_narrow(instruction.operand1, platform)
    fast = (instruction.op0, instruction.op1) == (
        AluOp.SUBTRACT,
        AluOp.MULTIPLY,
    ) and elements % 2 == 0
    return elements if narrow and fast else 2 * elements


def _tensor_reduce(instruction: program.TensorReduce, platform: Platform) -> float:
    elements = longest(platform, instruction.data)
    narrow = is_narrow(instruction.data, platform) and is_narrow(instruction.dst, platform)
    return elements / 2 if narrow and instruction.op in _FAST_REDUCTIONS else elements


def _memset(instruction: program.Memset, platform: Platform) -> float:
    elements = longest(platform, instruction.dst)
    return (
        elements / 2
        if instruction.value.value == 0 and is_narrow(instruction.dst, platform)
        else elements
    )


def _copy_predicated(instruction: program.CopyPredicated, platform: Platform) -> float:
    """Twice the time while both operands come from SBUF."""
    sources = (
        instruction.predicate,
        instruction.src if isinstance(instruction.src, Access) else instruction.dst,
    )
    return (2 if _in_sbuf(*sources) else 1) * _plain(instruction, platform)


def _quarter_of_source(instruction: Any, platform: Platform) -> float:
    return longest(platform, instruction.src) / 4


def _reciprocal(instruction: Any, platform: Platform) -> float:
    return platform.timings.engines.reciprocal_cycles * _plain(instruction, platform)


CYCLES: Mapping[type[Instruction], Cycles] = {
    program.TensorTensor: _tensor_tensor,
    program.TensorScalar: _tensor_scalar,
    program.ScalarTensorTensor: _scalar_tensor_tensor,
    program.TensorReduce: _tensor_reduce,
    program.TensorScalarReduce: _plain,
    program.TensorScalarCumulative: _times(2),
    program.TensorTensorScan: _times(2),
    program.TensorCopy: _tensor_copy,
    program.CopyPredicated: _copy_predicated,
    program.SelectReduce: _plain,
    program.RangeSelect: _plain,
    program.Memset: _memset,
    program.BatchNormStats: _plain,
    program.BatchNormAggregate: lambda instruction, platform: (
        13 * longest(platform, instruction.data) / 3
    ),
    program.Reciprocal: _reciprocal,
    program.Exponential: _quarter_of_source,
    program.Max8: _plain,
    program.FindIndex8: _plain,
    program.MatchReplace8: _plain,
    program.StreamShuffle: _plain,
    program.VectorTranspose: _plain,
    program.QuantizeMX: _quarter_of_source,
}
"""Cycles by type, on the Vector engine."""


def _on_vector(instruction: Any, platform: Platform) -> Cost:
    cycles = CYCLES[type(instruction)](instruction, platform)
    cost = streaming(platform, Engine.VECTOR, cycles)
    if getattr(instruction, "reduce_res", None) is None:
        return cost
    return cost + extra(platform, Engine.VECTOR, platform.timings.engines.accumulator_cycles)


def _on_scalar(instruction: Any, platform: Platform) -> Cost:
    """The cost on the Scalar engine is that of its own instructions: N cycles."""
    elements = _plain(instruction, platform)
    wide = platform.core.scalar.elements_per_cycle(instruction.dst.element_type.name)
    cycles = elements * platform.core.scalar.lanes / wide
    return streaming(platform, Engine.SCALAR, cycles)


_ON: Mapping[Engine, Rule] = {
    Engine.VECTOR: _on_vector,
    Engine.SCALAR: _on_scalar,
    Engine.GPSIMD: gpsimd_engine.elementwise,
}


def _elementwise(instruction: Any, platform: Platform) -> Cost:
    return _ON[instruction.engine](instruction, platform)


COSTS: Mapping[type[Instruction], Rule] = dict.fromkeys(CYCLES, _elementwise)
