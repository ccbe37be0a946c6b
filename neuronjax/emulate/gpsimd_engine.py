"""How instructions of the GpSimd engine execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.emulate.arithmetic import ARITHMETIC
from neuronjax.emulate.custom_functions import FLOAT, INTEGER, to_odd
from neuronjax.emulate.element_types import truncated
from neuronjax.emulate.exchange import Exchange
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Read, Run, Unit
from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError
from neuronjax.formats import FLOAT32
from neuronjax.program.element_types import ElementType, Integer
from neuronjax.program.gpsimd_engine import (
    AffineSelect,
    CoreBarrier,
    CustomOp,
    Gather,
    Iota,
    LocalGather,
    NonzeroWithCount,
    PartitionReduce,
    SequenceBounds,
    TopK,
)
from neuronjax.program.operand import Access, Dim, Immediate
from neuronjax.program.operators import CustomFunction, PartitionReduction

_CORE = 16
"""Number of adjacent partitions that belong to one processor of the engine."""


def _pattern(pattern: tuple[Dim, ...], multiplier: int, partitions: int) -> Array:
    """p * multiplier + Σ step * index, [partitions, elements], int64."""
    total = np.zeros((1,), np.int64)
    for dim in pattern:
        total = (total[:, None] + dim.stride * np.arange(dim.size)).reshape(-1)
    return multiplier * np.arange(partitions)[:, None] + total


def iota(instruction: Iota, unit: Unit) -> Run:
    """dst = offset + p * channel_multiplier + Σ step * index."""
    pattern = _pattern(
        instruction.pattern, instruction.channel_multiplier, instruction.dst.partitions
    )
    offset, write = unit.frame.number(instruction.offset), unit.output(instruction.dst)
    return lambda values: write(values, (pattern + offset(values)).astype(np.int32))


def affine_select(instruction: AffineSelect, unit: Unit) -> Run:
    """dst = on_true where the pattern's value compares with 0, else on_false.

    Elements are copied bit by bit if the types are equal.
    """
    pattern = _pattern(
        instruction.pattern, instruction.channel_multiplier, instruction.dst.partitions
    )
    offset, compare = unit.frame.number(instruction.offset), ARITHMETIC[instruction.cmp_op]
    zero = np.zeros((), np.int64)

    def chosen(values: Values) -> Array:
        return compare(pattern + offset(values), zero) != 0

    if instruction.on_true.element_type == instruction.dst.element_type:
        bits, move = unit.bits(instruction.on_true), unit.mover(instruction.dst)
        constant = unit.constant(instruction.on_false, instruction.dst)
        return lambda values: move(values, np.where(chosen(values), bits(values), constant))
    on_true, on_false = unit.numbers(instruction.on_true), unit.scalar(instruction.on_false)
    write = unit.output(instruction.dst)
    return lambda values: write(values, np.where(chosen(values), on_true(values), on_false(values)))


_OVER_PARTITIONS: Mapping[PartitionReduction, Callable[[Array], Array]] = {
    PartitionReduction.ADD: lambda x: x.sum(0),
    PartitionReduction.AVERAGE: lambda x: x.sum(0) / np.float32(len(x)),
    PartitionReduction.MAX: lambda x: x.max(0),
    PartitionReduction.BITWISE_OR: lambda x: np.bitwise_or.reduce(x, 0),
    PartitionReduction.BITWISE_AND: lambda x: np.bitwise_and.reduce(x, 0),
}
_ON_BITS = (PartitionReduction.BITWISE_OR, PartitionReduction.BITWISE_AND)


def partition_reduce(instruction: PartitionReduce, unit: Unit) -> Run:
    """dst = op over the partitions of data."""
    data = (
        unit.bits(instruction.data)
        if instruction.op in _ON_BITS
        else unit.numbers(instruction.data)
    )
    reduce, write = _OVER_PARTITIONS[instruction.op], unit.output(instruction.dst)
    return lambda values: write(values, reduce(data(values)))


def _checked(unit: Unit, indices: Array, size: int, what: str) -> None:
    wrong = indices[(indices < 0) | (indices >= size)]
    if wrong.size:
        raise OutOfBoundsError(
            f"{unit.place.path}: index {wrong[0]} is out of bounds for {what}: there are {size}."
            " Clamp the indices."
        )


def local_gather(instruction: LocalGather, unit: Unit) -> Run:
    """Each processor gathers along its 16 partitions with one list of indices.

    The list goes down the partitions first: entry i lies at partition i % 16, element i // 16.
    """
    src, index, dst = (
        unit.bits(instruction.src),
        unit.bits(instruction.index),
        unit.part(instruction.dst),
    )
    size = instruction.elements_per_index
    groups, per_core = (
        instruction.index.partitions // _CORE,
        instruction.index.free_elements * _CORE,
    )
    count = per_core if instruction.valid_indices is None else instruction.valid_indices
    written = np.arange(instruction.dst.free_elements)[None, :] < count * size

    def run(values: Values) -> None:
        lists = index(values).reshape(groups, _CORE, -1).transpose(0, 2, 1).reshape(groups, -1)
        lists = lists[:, :count].astype(np.int64)
        elements = src(values).reshape(groups, _CORE, -1, size)
        _checked(unit, lists, elements.shape[2], "the elements of src")
        gathered = np.take_along_axis(elements, lists[:, None, :, None], axis=2)
        result = np.zeros(
            (instruction.dst.partitions, instruction.dst.free_elements), gathered.dtype
        )
        result[:, : count * size] = gathered.reshape(instruction.src.partitions, -1)
        dst.move(values, result, written)

    return run


def gather(instruction: Gather, unit: Unit) -> Run:
    """dst[p, i] = data[p, indices[p, i]]."""
    data, indices, move = (
        unit.bits(instruction.data),
        unit.bits(instruction.indices),
        unit.mover(instruction.dst),
    )
    size = instruction.data.free_elements

    def run(values: Values) -> None:
        places = indices(values).astype(np.int64)
        _checked(unit, places, size, "the elements of data")
        move(values, np.take_along_axis(data(values), places, axis=1))

    return run


def nonzero_with_count(instruction: NonzeroWithCount, unit: Unit) -> Run:
    """Indices of non-zero elements, then padding, then their number, in every 16th partition."""
    src, dst = unit.part(instruction.src), unit.part(instruction.dst)
    offset = unit.frame.number(instruction.index_offset)
    chosen = (np.arange(instruction.dst.partitions) % _CORE == 0)[:, None]
    size = instruction.src.free_elements

    def run(values: Values) -> None:
        data = src.bits(values, chosen)
        result = np.full((len(data), size + 1), instruction.padding, np.int32)
        for row in range(0, len(data), _CORE):
            places = np.flatnonzero(data[row])
            result[row, : len(places)] = places + offset(values)
            result[row, size] = len(places)
        dst.write(values, result, chosen)

    return run


def topk(instruction: TopK, unit: Unit) -> Run:
    """The K greatest of each group of 16 partitions, ascending, and their indices.

    Element i of a group lies at partition i % 16, position i // 16, in source and results alike.
    """
    src, values_, indices = (
        unit.part(instruction.src),
        unit.part(instruction.values),
        unit.part(instruction.indices),
    )
    k, groups = instruction.values.free_elements, instruction.src.partitions // _CORE
    read = _snake_mask(instruction.n, instruction.src)
    written = _snake_mask(k, instruction.values)

    def run(values: Values) -> None:
        data = src.numbers(values, read).reshape(groups, _CORE, -1).transpose(0, 2, 1)
        data = data.reshape(groups, -1)[:, : instruction.n]
        order = np.argsort(data, axis=1, kind="stable")[:, instruction.n - k :]
        best = np.take_along_axis(data, order, 1)
        values_.write(values, _snake(best, instruction.values), written)
        indices.write(values, _snake(order, instruction.indices), written)

    return run


def _snake_mask(count: int, access: Access) -> Array:
    partition = np.arange(access.partitions)[:, None] % _CORE
    return partition + _CORE * np.arange(access.free_elements)[None, :] < count


def _snake(rows: Array, access: Access) -> Array:
    """Lays [groups, count] out over 16 partitions per group, padded with zeros."""
    groups, count = rows.shape
    full = np.zeros((groups, access.free_elements * _CORE), rows.dtype)
    full[:, :count] = rows
    return full.reshape(groups, -1, _CORE).transpose(0, 2, 1).reshape(access.partitions, -1)


def sequence_bounds(instruction: SequenceBounds, unit: Unit) -> Run:
    """Starts of all elements' segments, then their ends; n and -1 for segment 0, the padding."""
    ids, write = unit.numbers(instruction.segment_ids), unit.output(instruction.dst)
    size = instruction.segment_ids.free_elements

    def run(values: Values) -> None:
        row = ids(values)[0]
        edges = np.flatnonzero(row[1:] != row[:-1]) + 1
        begins, ends = np.concatenate([[0], edges]), np.concatenate([edges, [size]])
        segment = np.searchsorted(edges, np.arange(size), side="right")
        begin = np.where(row == 0, size, begins[segment])
        end = np.where(row == 0, -1, ends[segment])
        write(values, np.concatenate([begin, end])[None, :].astype(np.int32))

    return run


def custom_op(instruction: CustomOp, unit: Unit) -> Run:
    """dst = function(srcs)."""
    if instruction.function is CustomFunction.SELECT:
        return _select(instruction, unit)
    domain = _domain(instruction, unit)
    integer = isinstance(domain, Integer)
    table = INTEGER if integer else FLOAT
    if instruction.function not in table:
        raise UnsupportedProgramError(
            f"{unit.place.path}: custom_op cannot compute {instruction.function.value} in"
            f" {domain.name}. Convert the operands first."
        )
    dtype = np.dtype(domain.name) if integer else np.dtype(np.float64)
    reads = [_operand(unit, src, dtype) for src in instruction.srcs]
    function, write, finish = (
        table[instruction.function],
        unit.output(instruction.dst),
        _finish(instruction, unit),
    )
    shape = (instruction.dst.partitions, instruction.dst.free_elements)

    def run(values: Values) -> None:
        result = finish(function(*(read(values) for read in reads)))
        write(values, np.broadcast_to(result, shape))

    return run


def _domain(instruction: CustomOp, unit: Unit) -> ElementType:
    """The type in which the instruction computes."""
    domain = next((src.element_type for src in instruction.srcs if src.element_type), None)
    if domain is None:
        raise UnsupportedProgramError(
            f"{unit.place.path}: all operands of {instruction.function.value} are constants"
            " without a type. Give one of them a type, such as #1 as int32."
        )
    return domain


def _operand(unit: Unit, operand: Access | Immediate, dtype: np.dtype) -> Read:
    """An operand as integers of `dtype` or as float64."""
    if dtype.kind in "iu":
        return unit.integers(operand, dtype)
    if isinstance(operand, Immediate):
        constant = np.full((1, 1), operand.value, np.float64)
        return lambda _: constant
    if isinstance(operand.element_type, Integer):
        bits = unit.bits(operand)
        return lambda values: bits(values).astype(np.float64)
    numbers = unit.numbers(operand)
    return lambda values: numbers(values).astype(np.float64)


def _finish(instruction: CustomOp, unit: Unit) -> Callable[[Array], Array]:
    """The conversion of results to dst: integers wrap or truncate, numbers are rounded once."""
    target, dtype = instruction.dst.element_type, unit.dtype(instruction.dst)
    if isinstance(target, Integer):
        return lambda x: truncated(x, dtype) if x.dtype.kind == "f" else x.astype(dtype)
    if target == FLOAT32:
        return lambda x: x.astype(np.float32)
    return lambda x: to_odd(np.ascontiguousarray(x, np.float64))


def _select(instruction: CustomOp, unit: Unit) -> Run:
    """Copies elements of any one type."""
    predicate, *branches = instruction.srcs
    assert isinstance(predicate, Access)
    chosen, dtype, move = (
        unit.bits(predicate),
        unit.dtype(instruction.dst),
        unit.mover(instruction.dst),
    )
    shape = (instruction.dst.partitions, instruction.dst.free_elements)
    on_true, on_false = (_bits(unit, src, dtype) for src in branches)

    def run(values: Values) -> None:
        result = np.where(chosen(values) != 0, on_true(values), on_false(values))
        move(values, np.broadcast_to(result, shape))

    return run


def _bits(unit: Unit, operand: Access | Immediate, dtype: np.dtype) -> Read:
    if isinstance(operand, Access):
        return unit.bits(operand)
    constant = np.array([[operand.value]]).astype(dtype)
    return lambda _: constant


def core_barrier(instruction: CoreBarrier, unit: Unit) -> Run | Exchange:
    """Waits for the other core in a split; outside of one there is none."""
    if unit.split_core is None:
        return lambda values: None
    data = instruction.data.buffer
    return Exchange(
        stream=f"barrier of {instruction.engine.value}",
        members=instruction.cores,
        description=f"core_barrier of {'a tile' if data.on_chip else data.name}",
        send=lambda values: [],
        combine=lambda sent, core: [],
        receive=lambda values, results: None,
        is_between_cores=True,
    )


RULES: Rules = {
    Iota: iota,
    AffineSelect: affine_select,
    PartitionReduce: partition_reduce,
    LocalGather: local_gather,
    Gather: gather,
    NonzeroWithCount: nonzero_with_count,
    TopK: topk,
    SequenceBounds: sequence_bounds,
    CustomOp: custom_op,
    CoreBarrier: core_barrier,
}
"""Instruction -> rule that turns it into a function."""
