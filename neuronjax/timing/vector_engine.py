"""Cost of element-wise instructions, on the Vector engine and where else they run.

Cycles per instruction: NKI ISA, edition 2.26; N is the number of elements in a partition.
Performance modes of NeuronCore-v3 and later: nki/guides/architecture/trainium2_arch.rst. FP32 pairs
from SBUF take N cycles there, for the data path is two elements wide, and 2N before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program import vector_engine as program
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


def data(each: Instruction) -> tuple[Access, ...]:
    """The accesses that stream: all but single elements for each partition."""
    return tuple(access for access in each.accesses() if access.memory is not Memory.HBM)


def _plain(each: Instruction, platform: Platform) -> float:
    return longest(platform, *data(each))


def _times(factor: float) -> Cycles:
    return lambda each, platform: factor * _plain(each, platform)


def _in_sbuf(*accesses: Access) -> bool:
    return all(access.memory is Memory.SBUF for access in accesses)


def _tensor_tensor(each: program.TensorTensor, platform: Platform) -> float:
    elements = _plain(each, platform)
    operands = (each.data1, each.data2)
    narrow = all(is_narrow(access, platform) for access in (*operands, each.dst))
    if platform.core.version >= 3:
        return elements / 2 if narrow and _in_sbuf(*operands) else elements
    dense = all(map(is_dense, operands))
    if each.data1.memory is not each.data2.memory:
        return elements
    fast = narrow and dense and _in_sbuf(*operands) and each.op in _PAIRWISE
    return elements if fast else 2 * elements


def _copied(each: Instruction, platform: Platform, dst: Access, src: Access) -> float:
    """`tensor_copy` and `tensor_scalar`: two or four elements per cycle from version 3."""
    elements = longest(platform, dst, src)
    if platform.core.version < 3 or not (is_narrow(dst, platform) and is_narrow(src, platform)):
        return elements
    if not _in_sbuf(dst) and not _in_sbuf(src):
        return elements
    return elements / (4 if _in_sbuf(dst, src) and is_dense(dst) and is_dense(src) else 2)


def _tensor_copy(each: program.TensorCopy, platform: Platform) -> float:
    return _copied(each, platform, each.dst, each.src)


def _tensor_scalar(each: program.TensorScalar, platform: Platform) -> float:
    return _copied(each, platform, each.dst, each.data)


def _scalar_tensor_tensor(each: program.ScalarTensorTensor, platform: Platform) -> float:
    elements = _plain(each, platform)
    if platform.core.version >= 3 or each.data.memory is not each.operand1.memory:
        return elements
    narrow = is_narrow(each.data, platform) and is_narrow(each.operand1, platform)
    fast = (each.op0, each.op1) == (AluOp.SUBTRACT, AluOp.MULTIPLY) and elements % 2 == 0
    return elements if narrow and fast else 2 * elements


def _tensor_reduce(each: program.TensorReduce, platform: Platform) -> float:
    elements = longest(platform, each.data)
    narrow = is_narrow(each.data, platform) and is_narrow(each.dst, platform)
    return elements / 2 if narrow and each.op in _FAST_REDUCTIONS else elements


def _memset(each: program.Memset, platform: Platform) -> float:
    elements = longest(platform, each.dst)
    return elements / 2 if each.value.value == 0 and is_narrow(each.dst, platform) else elements


def _copy_predicated(each: program.CopyPredicated, platform: Platform) -> float:
    """Twice the time while both operands come from SBUF."""
    sources = (each.predicate, each.src if isinstance(each.src, Access) else each.dst)
    return (2 if _in_sbuf(*sources) else 1) * _plain(each, platform)


def _bn_aggr(each: program.BatchNormAggregate, platform: Platform) -> float:
    return 13 * longest(platform, each.data) / 3


def _quarter_of_source(each: Any, platform: Platform) -> float:
    return longest(platform, each.src) / 4


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
    program.BatchNormAggregate: _bn_aggr,
    program.Reciprocal: _times(8),
    program.Exponential: _quarter_of_source,
    program.Max8: _plain,
    program.FindIndex8: _plain,
    program.MatchReplace8: _plain,
    program.StreamShuffle: _plain,
    program.VectorTranspose: _plain,
    program.QuantizeMX: _quarter_of_source,
}
"""Cycles by type, on the Vector engine."""


def _on_vector(each: Any, platform: Platform) -> Cost:
    cycles = CYCLES[type(each)](each, platform)
    reads_accumulator = getattr(each, "reduce_res", None) is not None
    accumulator = platform.timings.engines.accumulator_cycles if reads_accumulator else 0
    return streaming(platform, Engine.VECTOR, cycles) + extra(platform, Engine.VECTOR, accumulator)


def _on_scalar(each: Any, platform: Platform) -> Cost:
    """As the Scalar engine's own: N cycles."""
    elements = _plain(each, platform)
    wide = platform.core.scalar.elements_per_cycle(each.dst.element_type.name)
    cycles = elements * platform.core.scalar.lanes / wide
    return streaming(platform, Engine.SCALAR, cycles)


_ON: Mapping[Engine, Rule] = {
    Engine.VECTOR: _on_vector,
    Engine.SCALAR: _on_scalar,
    Engine.GPSIMD: gpsimd_engine.elementwise,
}


def _elementwise(each: Any, platform: Platform) -> Cost:
    return _ON[each.engine](each, platform)


COSTS: Mapping[type[Instruction], Rule] = dict.fromkeys(CYCLES, _elementwise)
