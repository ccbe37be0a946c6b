"""How element-wise instructions of the Vector engine execute; some run on Scalar or GpSimd too."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.emulate.accumulator import Accumulator
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
    """Writes what `compute` gives."""
    write = unit.output(dst)
    return lambda values: write(values, compute(values))


def tensor_tensor(each: TensorTensor, unit: Unit) -> Run:
    """dst = data1 op data2."""
    if is_bitwise(each.op):
        dtype = unit.dtype(each.data1)
        one, other = (unit.integers(access, dtype) for access in (each.data1, each.data2))
        operator = applied_to_bits(each.op, False)
    elif each.engine is Engine.GPSIMD and _is_word(each.data1) and _is_word(each.data2):
        wide = np.dtype(np.int64)
        one, other = (unit.integers(access, wide) for access in (each.data1, each.data2))
        operator = EXACT[each.op]
    else:
        one, other = unit.numbers(each.data1), unit.numbers(each.data2)
        operator = ARITHMETIC[each.op]
    return mapped(unit, each.dst, lambda values: operator(one(values), other(values)))


def _is_word(access: Access) -> bool:
    found = access.element_type
    return isinstance(found, Integer) and found.storage_bits == 32


def tensor_scalar(each: TensorScalar, unit: Unit) -> Run:
    """dst = (data op0 operand0) op1 operand1."""
    steps: list[tuple[Binary, Read]] = []
    pairs = ((each.op0, each.operand0, each.reverse0), (each.op1, each.operand1, each.reverse1))
    bitwise = is_bitwise(each.op0)
    data = unit.bits(each.data) if bitwise else unit.numbers(each.data)
    for op, operand, reverse in pairs:
        if op is None:
            continue
        if bitwise:
            dtype = unit.dtype(each.data)
            read = data if operand is None else unit.integers(operand, dtype)
            steps.append((applied_to_bits(op, reverse), read))
        else:
            steps.append((applied(op, reverse), unit.scalar(operand)))

    def compute(values: Values) -> Array:
        x = data(values)
        for operator, operand in steps:
            x = operator(x, operand(values))
        return x

    return mapped(unit, each.dst, compute)


def scalar_tensor_tensor(each: ScalarTensorTensor, unit: Unit) -> Run:
    """dst = (data op0 operand0) op1 operand1."""
    data, scalar = unit.numbers(each.data), unit.scalar(each.operand0)
    tensor = unit.numbers(each.operand1)
    op0, op1 = applied(each.op0, each.reverse0), applied(each.op1, each.reverse1)
    return mapped(
        unit, each.dst, lambda values: op1(op0(data(values), scalar(values)), tensor(values))
    )


def tensor_reduce(each: TensorReduce, unit: Unit) -> Run:
    """dst = op over the last dimensions of data."""
    data = unit.bits(each.data) if is_bitwise(each.op) else unit.numbers(each.data)
    kept = each.data.sizes[: len(each.data.dims) - each.axes]
    shape = (each.data.partitions, int(np.prod(kept, dtype=int)), -1)

    def compute(values: Values) -> Array:
        result = reduced(each.op, data(values).reshape(shape))
        return np.negative(result) if each.negate else result

    return mapped(unit, each.dst, compute)


def tensor_scalar_reduce(each: TensorScalarReduce, unit: Unit) -> Run:
    """dst = data op0 operand0; the accumulator reduces dst."""
    data, scalar, write = unit.numbers(each.data), unit.scalar(each.operand0), unit.output(each.dst)
    operator = ARITHMETIC[each.op0]
    accumulator = Accumulator(
        unit, each.data, each.reduce_op, each.reduce_cmd, each.reduce_res,
        initial=each.reduce_init, negate=each.reduce_res_negate,
    )  # fmt: skip
    return reducing(accumulator, write, lambda values: operator(data(values), scalar(values)))


def reducing(
    accumulator: Accumulator, write: Callable[[Values, Array], None], compute: Read
) -> Run:
    """Writes what `compute` gives; the accumulator takes it."""

    def run(values: Values) -> None:
        result = compute(values)
        accumulator.take(values, result)
        write(values, result)
        accumulator.write(values)

    return run


_ACCUMULATE: Mapping[AluOp, Callable[[Array], Array]] = {
    AluOp.ADD: lambda x: np.add.accumulate(x, axis=1),
    AluOp.MULTIPLY: lambda x: np.multiply.accumulate(x, axis=1),
    AluOp.MAXIMUM: lambda x: np.maximum.accumulate(x, axis=1),
    AluOp.MINIMUM: lambda x: np.minimum.accumulate(x, axis=1),
}
"""Operator -> its running results along the free dimension, where numpy has them."""


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


def tensor_scalar_cumulative(each: TensorScalarCumulative, unit: Unit) -> Run:
    """dst[i] = op1(op0(src[i], imm0), dst[i - 1])."""
    src, imm0, imm1 = unit.numbers(each.src), unit.scalar(each.imm0), unit.scalar(each.imm1)
    write, operator = unit.output(each.dst), ARITHMETIC[each.op0]
    registers = Accumulator(unit, each.src, each.op1, ReduceCommand.IDLE, None)
    identity = np.full((1, 1), IDENTITIES.get(each.op1, 0.0), np.float32)
    firsts: Mapping[ReduceCommand, Read] = {
        ReduceCommand.LOAD_REDUCE: imm1,
        ReduceCommand.REDUCE: registers.state,
    }
    first = firsts.get(each.reduce_cmd, lambda _: identity)

    def run(values: Values) -> None:
        result = running(each.op1, first(values).copy(), operator(src(values), imm0(values)))
        registers.state(values)[...] = result[:, -1:]
        write(values, result)

    return run


def tensor_tensor_scan(each: TensorTensorScan, unit: Unit) -> Run:
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]."""
    data0, data1 = unit.numbers(each.data0), unit.numbers(each.data1)
    initial = unit.scalar(each.initial)
    op0, op1 = applied(each.op0, each.reverse0), applied(each.op1, each.reverse1)

    def compute(values: Values) -> Array:
        one, other = data0(values), data1(values)
        result = np.empty_like(one)
        last = np.broadcast_to(initial(values), (len(one), 1))[:, 0]
        for place in range(one.shape[1]):
            last = op1(op0(one[:, place], last), other[:, place])
            result[:, place] = last
        return result

    return mapped(unit, each.dst, compute)


def tensor_copy(each: TensorCopy, unit: Unit) -> Run:
    """dst = src."""
    if each.src.element_type == each.dst.element_type:
        raw, move = unit.raw(each.src), unit.mover(each.dst)
        return lambda values: move(values, raw(values))
    return mapped(unit, each.dst, unit.numbers(each.src))


def memset(each: Memset, unit: Unit) -> Run:
    """dst = value."""
    element, dst = unit.constant(each.value, each.dst), unit.part(each.dst)
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


def bn_stats(each: BatchNormStats, unit: Unit) -> Run:
    """dst = moments of the even elements, then of the odd ones."""
    data = unit.numbers(each.data)

    def compute(values: Values) -> Array:
        x = data(values)
        return np.concatenate([_moments(x[:, 0::2]), _moments(x[:, 1::2])], 1)

    return mapped(unit, each.dst, compute)


def bn_aggr(each: BatchNormAggregate, unit: Unit) -> Run:
    """dst = mean and variance from triples."""
    data = unit.numbers(each.data)

    def compute(values: Values) -> Array:
        triples = data(values).astype(np.float64).reshape(each.data.partitions, -1, 3)
        count, mean, spread = (triples[:, :, place] for place in range(3))
        total = count.sum(1)
        center = (count * mean).sum(1) / total
        variance = (spread + count * np.square(mean - center[:, None])).sum(1) / total
        return np.stack([center, variance], 1).astype(np.float32)

    return mapped(unit, each.dst, compute)


def reciprocal(each: Reciprocal, unit: Unit) -> Run:
    """dst = 1 / data, correctly rounded."""
    data = unit.numbers(each.data)
    return mapped(unit, each.dst, lambda values: np.reciprocal(data(values)))


def exponential(each: Exponential, unit: Unit) -> Run:
    """dst = exp(src - max_value)."""
    src, top = unit.numbers(each.src), unit.scalar(each.max_value)
    accumulator = Accumulator(
        unit, each.src, AluOp.ADD, each.reduce_cmd, each.reduce_res, initial=each.reduce_init
    )
    return reducing(
        accumulator, unit.output(each.dst), lambda values: _exp(src(values) - top(values))
    )


def quantize_mx(each: QuantizeMX, unit: Unit) -> Run:
    """dst, dst_scale = src in blocks of 8 partitions × 4 neighbours."""
    assert isinstance(each.dst.element_type, Packed)
    src, words = unit.numbers(each.src), unit.mover(each.dst)
    scales, packed = unit.part(each.dst_scale), each.dst.element_type
    rows = np.unique(scale_rows(each.src.partitions))
    written = np.zeros((each.dst_scale.partitions, 1), bool)
    written[rows] = True
    dtype = unit.dtype(each.dst_scale)

    def run(values: Values) -> None:
        found, codes = quantized(src(values), packed)
        words(values, found)
        spread = np.zeros((each.dst_scale.partitions, codes.shape[1]), np.uint8)
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
"""Instruction -> what makes it a function; `vector_selection` has the others of the engine."""
