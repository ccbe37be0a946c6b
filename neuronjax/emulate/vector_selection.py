"""How the Vector engine's instructions execute that select, search and rearrange elements."""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.accumulator import reducing
from neuronjax.emulate.arithmetic import ARITHMETIC
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Run, Unit
from neuronjax.emulate.vector_engine import mapped
from neuronjax.program.operand import Access
from neuronjax.program.vector_engine import (
    CopyPredicated,
    FindIndex8,
    MatchReplace8,
    Max8,
    RangeSelect,
    SelectReduce,
    StreamShuffle,
    VectorTranspose,
)

_EIGHT = 8
_QUADRANT, _STAYS = 32, 255


def tensor_copy_predicated(instruction: CopyPredicated, unit: Unit) -> Run:
    """dst = src where the predicate holds."""
    dst, predicate = unit.part(instruction.dst), unit.bits(instruction.predicate)

    def chosen(values: Values) -> Array:
        return (predicate(values) != 0) != instruction.reverse_pred

    if not isinstance(instruction.src, Access):
        constant = unit.constant(instruction.src, instruction.dst)
        return lambda values: dst.move(values, constant, chosen(values))
    src = unit.part(instruction.src)
    same = instruction.src.element_type == instruction.dst.element_type
    is_whole = instruction.src.free_elements == instruction.dst.free_elements

    def run(values: Values) -> None:
        where = chosen(values)
        wanted = where if is_whole else None
        if same:
            dst.move(values, src.bits(values, wanted), where)
        else:
            dst.write(values, src.numbers(values, wanted), where)

    return run


def select_reduce(instruction: SelectReduce, unit: Unit) -> Run:
    """dst = on_true where the predicate holds, else on_false."""
    predicate, on_true = unit.bits(instruction.predicate), unit.numbers(instruction.on_true)
    on_false = unit.scalar(instruction.on_false)

    def compute(values: Values) -> Array:
        where = (predicate(values) != 0) != instruction.reverse_pred
        return np.where(where, on_true(values), on_false(values))

    return reducing(unit, instruction.on_true, instruction.dst, compute)


def range_select(instruction: RangeSelect, unit: Unit) -> Run:
    """dst = on_true where the position is in range, else on_false."""
    on_true, on_false = unit.numbers(instruction.on_true), unit.scalar(instruction.on_false)
    bound0, bound1 = unit.numbers(instruction.bound0), unit.numbers(instruction.bound1)
    op0, op1 = ARITHMETIC[instruction.comp_op0], ARITHMETIC[instruction.comp_op1]
    last = instruction.range_start + instruction.on_true.free_elements
    position = np.arange(instruction.range_start, last, dtype=np.float32)[None, :]

    def compute(values: Values) -> Array:
        inside = (op0(position, bound0(values)) != 0) & (op1(position, bound1(values)) != 0)
        return np.where(inside, on_true(values), on_false(values))

    return reducing(unit, instruction.on_true, instruction.dst, compute)


def max8(instruction: Max8, unit: Unit) -> Run:
    """dst = the 8 greatest of each partition, descending; NaN counts as the greatest."""
    src = unit.numbers(instruction.src)
    return mapped(
        unit, instruction.dst, lambda values: np.sort(src(values), 1)[:, : -_EIGHT - 1 : -1]
    )


def find_index8(instruction: FindIndex8, unit: Unit) -> Run:
    """dst = position at which each value first occurs; all ones if it does not."""
    data, vals = unit.numbers(instruction.data), unit.numbers(instruction.vals)
    missing = np.iinfo(unit.dtype(instruction.dst)).max

    def compute(values: Values) -> Array:
        matches = data(values)[:, None, :] == vals(values)[:, :, None]
        return np.where(matches.any(2), matches.argmax(2), missing)

    return mapped(unit, instruction.dst, compute)


def match_replace8(instruction: MatchReplace8, unit: Unit) -> Run:
    """dst = data with the first occurrence of each value replaced, one value after the other."""
    data, vals, write = (
        unit.numbers(instruction.data),
        unit.numbers(instruction.vals),
        unit.output(instruction.dst),
    )
    places = unit.output(instruction.dst_idx) if instruction.dst_idx is not None else None
    missing = (
        np.iinfo(unit.dtype(instruction.dst_idx)).max if instruction.dst_idx is not None else -1
    )

    def run(values: Values) -> None:
        result, wanted = data(values).copy(), vals(values)
        open_ = np.ones(result.shape, bool)
        where = np.full(wanted.shape, missing, np.int64)
        for place in range(_EIGHT):
            matches = (result == wanted[:, place, None]) & open_
            rows = np.flatnonzero(matches.any(1))
            first = matches[rows].argmax(1)
            result[rows, first], open_[rows, first] = instruction.imm.value, False
            where[rows, place] = first
        write(values, result)
        if places is not None:
            places(values, where)

    return run


def stream_shuffle(instruction: StreamShuffle, unit: Unit) -> Run:
    """dst[q + i] = src[q + mask[i]] in every quadrant q."""
    src, dst = unit.part(instruction.src), unit.part(instruction.dst)
    partition = np.arange(instruction.dst.partitions)
    lane = np.array(instruction.mask)[partition % _QUADRANT]
    moves = (lane != _STAYS)[:, None]
    source = np.where(lane == _STAYS, 0, partition // _QUADRANT * _QUADRANT + lane)
    wanted = np.zeros((instruction.src.partitions, 1), bool)
    wanted[source[moves[:, 0]]] = True
    return lambda values: dst.move(values, src.bits(values, wanted)[source], moves)


def vector_transpose(instruction: VectorTranspose, unit: Unit) -> Run:
    """dst = dataᵀ."""
    bits, move = unit.bits(instruction.data), unit.mover(instruction.dst)
    return lambda values: move(values, np.ascontiguousarray(bits(values).T))


RULES: Rules = {
    CopyPredicated: tensor_copy_predicated,
    SelectReduce: select_reduce,
    RangeSelect: range_select,
    Max8: max8,
    FindIndex8: find_index8,
    MatchReplace8: match_replace8,
    StreamShuffle: stream_shuffle,
    VectorTranspose: vector_transpose,
}
"""Instruction -> rule that turns it into a function."""
