"""How element-wise instructions of the Vector engine execute; some run on Scalar or GpSimd too."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.emulate.accumulator import Accumulator, reducing
from neuronjax.emulate.arithmetic import (
    ARITHMETIC,
    EXACT,
    IDENTITIES,
    Binary,
    applied,
    applied_to_bits,
    is_bitwise,
    once_rounded,
    reduced,
)
from neuronjax.emulate.frame import Values
from neuronjax.emulate.mx_blocks import quantized
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.tensor_engine import scale_rows
from neuronjax.emulate.unit import Array, Read, Run, Unit
from neuronjax.machine.specs import Engine
from neuronjax.program.element_types import Integer, Packed
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp, ReduceCommand
from neuronjax.program.vector_engine import (
    BatchNormAggregate,
    BatchNormStats,
    Exponential,
    Memset,
    QuantizeMX,
    Reciprocal,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorScalarCumulative,
    TensorScalarReduce,
    TensorTensor,
    TensorTensorScan,
)

_exp = once_rounded(np.exp)


def mapped(unit: Unit, dst: Access, compute: Read) -> Run:
    """Writes the results of `compute`."""
    write = unit.output(dst)
    return lambda values: write(values, compute(values))


def tensor_tensor(instruction: TensorTensor, unit: Unit) -> Run:
    """dst = data1 op data2."""
    both = (instruction.data1, instruction.data2)
    if is_bitwise(instruction.op):
        dtype = unit.dtype(instruction.data1)
        data1, data2 = (unit.integers(access, dtype) for access in both)
        operator = applied_to_bits(instruction.op, False)
    elif instruction.engine is Engine.GPSIMD and all(map(_is_word, both)):
        wide = np.dtype(np.int64)
        data1, data2 = (unit.integers(access, wide) for access in both)
        operator = EXACT[instruction.op]
    else:
        data1, data2 = map(unit.numbers, both)
        operator = ARITHMETIC[instruction.op]
    return mapped(unit, instruction.dst, lambda values: operator(data1(values), data2(values)))


def _is_word(access: Access) -> bool:
    dtype = access.element_type
    return isinstance(dtype, Integer) and dtype.storage_bits == 32


def tensor_scalar(instruction: TensorScalar, unit: Unit) -> Run:
    """dst = (data op0 operand0) op1 operand1."""
    steps: list[tuple[Binary, Read]] = []
    pairs = (
        (instruction.op0, instruction.operand0, instruction.reverse0),
        (instruction.op1, instruction.operand1, instruction.reverse1),
    )
    bitwise = is_bitwise(instruction.op0)
    data = unit.bits(instruction.data) if bitwise else unit.numbers(instruction.data)
    for op, operand, reverse in pairs:
        if op is None:
            continue
        if bitwise:
            dtype = unit.dtype(instruction.data)
            read = data if operand is None else unit.integers(operand, dtype)
            steps.append((applied_to_bits(op, reverse), read))
        else:
            steps.append((applied(op, reverse), unit.scalar(operand)))

    def compute(values: Values) -> Array:
        x = data(values)
        for operator, operand in steps:
            x = operator(x, operand(values))
        return x

    return mapped(unit, instruction.dst, compute)


def scalar_tensor_tensor(instruction: ScalarTensorTensor, unit: Unit) -> Run:
    """dst = (data op0 operand0) op1 operand1."""
    data, scalar = unit.numbers(instruction.data), unit.scalar(instruction.operand0)
    tensor = unit.numbers(instruction.operand1)
    op0 = applied(instruction.op0, instruction.reverse0)
    op1 = applied(instruction.op1, instruction.reverse1)
    return mapped(
        unit, instruction.dst, lambda values: op1(op0(data(values), scalar(values)), tensor(values))
    )


def tensor_reduce(instruction: TensorReduce, unit: Unit) -> Run:
    """dst = op over the last dimensions of data."""
    data = (
        unit.bits(instruction.data)
        if is_bitwise(instruction.op)
        else unit.numbers(instruction.data)
    )
    kept = instruction.data.sizes[: len(instruction.data.dims) - instruction.axes]
    shape = (instruction.data.partitions, int(np.prod(kept, dtype=int)), -1)

    def compute(values: Values) -> Array:
        result = reduced(instruction.op, data(values).reshape(shape))
        return np.negative(result) if instruction.negate else result

    return mapped(unit, instruction.dst, compute)


def tensor_scalar_reduce(instruction: TensorScalarReduce, unit: Unit) -> Run:
    """dst = data op0 operand0, or the reverse; the accumulator reduces dst."""
    data, scalar = unit.numbers(instruction.data), unit.scalar(instruction.operand0)
    operator = ARITHMETIC[instruction.op0]
    left, right = (scalar, data) if instruction.reverse0 else (data, scalar)
    return reducing(
        unit,
        instruction.data,
        instruction.dst,
        lambda values: operator(left(values), right(values)),
    )


_ACCUMULATE: Mapping[AluOp, Callable[[Array], Array]] = {
    AluOp.ADD: lambda x: np.add.accumulate(x, axis=1),
    AluOp.MULTIPLY: lambda x: np.multiply.accumulate(x, axis=1),
    AluOp.MAXIMUM: lambda x: np.maximum.accumulate(x, axis=1),
    AluOp.MINIMUM: lambda x: np.minimum.accumulate(x, axis=1),
}
"""Operator -> numpy's cumulative function along the free dimension, where there is one."""


def running(op: AluOp, first: Array, x: Array) -> Array:
    """y[i] = x[i] op y[i - 1], y[-1] = first: [partitions, 1], [partitions, n], float32."""
    if op in _ACCUMULATE:
        return _ACCUMULATE[op](np.concatenate([np.broadcast_to(first, (len(x), 1)), x], 1))[:, 1:]
    result = np.empty_like(x)
    last = np.broadcast_to(first, (len(x), 1))[:, 0]
    for place in range(x.shape[1]):
        last = ARITHMETIC[op](x[:, place], last)
        result[:, place] = last
    return result


def tensor_scalar_cumulative(instruction: TensorScalarCumulative, unit: Unit) -> Run:
    """dst[i] = op1(op0(src[i], imm0), dst[i - 1])."""
    src = unit.numbers(instruction.src)
    imm0, imm1 = unit.scalar(instruction.imm0), unit.scalar(instruction.imm1)
    write, operator = unit.output(instruction.dst), ARITHMETIC[instruction.op0]
    registers = Accumulator(unit, instruction.src)
    identity = np.full((1, 1), IDENTITIES.get(instruction.op1, 0.0), np.float32)
    firsts: Mapping[ReduceCommand, Read] = {
        ReduceCommand.LOAD_REDUCE: imm1,
        ReduceCommand.REDUCE: registers.state,
    }
    first = firsts.get(instruction.reduce_cmd, lambda _: identity)

    def run(values: Values) -> None:
        result = running(instruction.op1, first(values).copy(), operator(src(values), imm0(values)))
        registers.state(values)[...] = result[:, -1:]
        write(values, result)

    return run


def tensor_tensor_scan(instruction: TensorTensorScan, unit: Unit) -> Run:
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]."""
    data0, data1 = unit.numbers(instruction.data0), unit.numbers(instruction.data1)
    initial = unit.scalar(instruction.initial)
    op0 = applied(instruction.op0, instruction.reverse0)
    op1 = applied(instruction.op1, instruction.reverse1)

    def compute(values: Values) -> Array:
        x, y = data0(values), data1(values)
        result = np.empty_like(x)
        last = np.broadcast_to(initial(values), (len(x), 1))[:, 0]
        for place in range(x.shape[1]):
            last = op1(op0(x[:, place], last), y[:, place])
            result[:, place] = last
        return result

    return mapped(unit, instruction.dst, compute)


def tensor_copy(instruction: TensorCopy, unit: Unit) -> Run:
    """dst = src."""
    if instruction.src.element_type == instruction.dst.element_type:
        raw, move = unit.raw(instruction.src), unit.mover(instruction.dst)
        return lambda values: move(values, raw(values))
    return mapped(unit, instruction.dst, unit.numbers(instruction.src))


def memset(instruction: Memset, unit: Unit) -> Run:
    """dst = value."""
    element, dst = unit.constant(instruction.value, instruction.dst), unit.part(instruction.dst)
    return lambda values: dst.move(values, element)


def _moments(data: Array) -> Array:
    """[partitions, n] -> count, mean and variance · count, [partitions, 3]."""
    wide = data.astype(np.float64)
    count = wide.shape[1]
    if not count:
        return np.zeros((len(data), 3), np.float32)
    mean = wide.mean(1)
    spread = np.square(wide - mean[:, None]).sum(1)
    return np.stack([np.full_like(mean, count), mean, spread], 1).astype(np.float32)


def bn_stats(instruction: BatchNormStats, unit: Unit) -> Run:
    """dst = moments of the even elements, then of the odd ones."""
    data = unit.numbers(instruction.data)

    def compute(values: Values) -> Array:
        x = data(values)
        return np.concatenate([_moments(x[:, 0::2]), _moments(x[:, 1::2])], 1)

    return mapped(unit, instruction.dst, compute)


def bn_aggr(instruction: BatchNormAggregate, unit: Unit) -> Run:
    """dst = mean and variance from triples."""
    data = unit.numbers(instruction.data)

    def compute(values: Values) -> Array:
        triples = data(values).astype(np.float64).reshape(instruction.data.partitions, -1, 3)
        count, mean, spread = (triples[:, :, place] for place in range(3))
        total = count.sum(1)
        center = (count * mean).sum(1) / total
        variance = (spread + count * np.square(mean - center[:, None])).sum(1) / total
        return np.stack([center, variance], 1).astype(np.float32)

    return mapped(unit, instruction.dst, compute)


def reciprocal(instruction: Reciprocal, unit: Unit) -> Run:
    """dst = 1 / data, correctly rounded."""
    data = unit.numbers(instruction.data)
    return mapped(unit, instruction.dst, lambda values: np.reciprocal(data(values)))


def exponential(instruction: Exponential, unit: Unit) -> Run:
    """dst = exp(src - max_value)."""
    src, top = unit.numbers(instruction.src), unit.scalar(instruction.max_value)
    return reducing(
        unit,
        instruction.src,
        instruction.dst,
        lambda values: _exp(src(values) - top(values)),
    )


def quantize_mx(instruction: QuantizeMX, unit: Unit) -> Run:
    """dst, dst_scale = src quantized in blocks of 8 partitions × 4 adjacent elements."""
    assert isinstance(instruction.dst.element_type, Packed)
    src, words = unit.numbers(instruction.src), unit.mover(instruction.dst)
    scales, packed = unit.part(instruction.dst_scale), instruction.dst.element_type
    rows = np.unique(scale_rows(instruction.src.partitions))
    written = np.zeros((instruction.dst_scale.partitions, 1), bool)
    written[rows] = True
    dtype = unit.dtype(instruction.dst_scale)

    def run(values: Values) -> None:
        blocks, codes = quantized(src(values), packed)
        words(values, blocks)
        spread = np.zeros((instruction.dst_scale.partitions, codes.shape[1]), np.uint8)
        spread[rows] = codes
        scales.move(values, spread.view(dtype), written)

    return run


RULES: Rules = {
    TensorTensor: tensor_tensor,
    TensorScalar: tensor_scalar,
    ScalarTensorTensor: scalar_tensor_tensor,
    TensorReduce: tensor_reduce,
    TensorScalarReduce: tensor_scalar_reduce,
    TensorScalarCumulative: tensor_scalar_cumulative,
    TensorTensorScan: tensor_tensor_scan,
    TensorCopy: tensor_copy,
    Memset: memset,
    BatchNormStats: bn_stats,
    BatchNormAggregate: bn_aggr,
    Reciprocal: reciprocal,
    Exponential: exponential,
    QuantizeMX: quantize_mx,
}
"""Instruction -> rule that turns it into a function; the rest are in `vector_selection`."""
