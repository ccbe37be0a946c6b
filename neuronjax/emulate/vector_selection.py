"""How instructions of the Vector engine execute that choose, search and move elements."""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.accumulator import Accumulator
from neuronjax.emulate.arithmetic import ARITHMETIC
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Run, Unit
from neuronjax.emulate.vector_engine import mapped, reducing
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


def tensor_copy_predicated(each: CopyPredicated, unit: Unit) -> Run:
    """dst = src where the predicate holds."""
    dst, predicate = unit.part(each.dst), unit.bits(each.predicate)

    def chosen(values: Values) -> Array:
        return (predicate(values) != 0) != each.reverse_pred

    if not isinstance(each.src, Access):
        constant = unit.constant(each.src, each.dst)
        return lambda values: dst.move(values, constant, chosen(values))
    src = unit.part(each.src)
    same = each.src.element_type == each.dst.element_type
    is_whole = each.src.free_elements == each.dst.free_elements

    def run(values: Values) -> None:
        where = chosen(values)
        wanted = where if is_whole else None
        if same:
            dst.move(values, src.bits(values, wanted), where)
        else:
            dst.write(values, src.numbers(values, wanted), where)

    return run


def select_reduce(each: SelectReduce, unit: Unit) -> Run:
    """dst = on_true where the predicate holds, else on_false."""
    predicate, on_true = unit.bits(each.predicate), unit.numbers(each.on_true)
    on_false, write = unit.scalar(each.on_false), unit.output(each.dst)
    accumulator = Accumulator(unit, each.on_true, each.reduce_op, each.reduce_cmd, each.reduce_res)

    def compute(values: Values) -> Array:
        where = (predicate(values) != 0) != each.reverse_pred
        return np.where(where, on_true(values), on_false(values))

    return reducing(accumulator, write, compute)


def range_select(each: RangeSelect, unit: Unit) -> Run:
    """dst = on_true where the position is in range, else on_false."""
    on_true, on_false = unit.numbers(each.on_true), unit.scalar(each.on_false)
    bound0, bound1 = unit.numbers(each.bound0), unit.numbers(each.bound1)
    op0, op1 = ARITHMETIC[each.comp_op0], ARITHMETIC[each.comp_op1]
    last = each.range_start + each.on_true.free_elements
    position = np.arange(each.range_start, last, dtype=np.float32)[None, :]
    accumulator = Accumulator(unit, each.on_true, each.reduce_op, each.reduce_cmd, each.reduce_res)

    def compute(values: Values) -> Array:
        inside = (op0(position, bound0(values)) != 0) & (op1(position, bound1(values)) != 0)
        return np.where(inside, on_true(values), on_false(values))

    return reducing(accumulator, unit.output(each.dst), compute)


def max8(each: Max8, unit: Unit) -> Run:
    """dst = the 8 greatest of each partition, descending; NaN counts as the greatest."""
    src = unit.numbers(each.src)
    return mapped(unit, each.dst, lambda values: np.sort(src(values), 1)[:, : -_EIGHT - 1 : -1])


def find_index8(each: FindIndex8, unit: Unit) -> Run:
    """dst = where each of the values first occurs; all ones if it does not."""
    data, vals = unit.numbers(each.data), unit.numbers(each.vals)
    missing = np.iinfo(unit.dtype(each.dst)).max

    def compute(values: Values) -> Array:
        found = data(values)[:, None, :] == vals(values)[:, :, None]
        return np.where(found.any(2), found.argmax(2), missing)

    return mapped(unit, each.dst, compute)


def match_replace8(each: MatchReplace8, unit: Unit) -> Run:
    """dst = data with the first occurrence of each value replaced, one value after the other."""
    data, vals, write = unit.numbers(each.data), unit.numbers(each.vals), unit.output(each.dst)
    places = unit.output(each.dst_idx) if each.dst_idx is not None else None
    missing = np.iinfo(unit.dtype(each.dst_idx)).max if each.dst_idx is not None else -1

    def run(values: Values) -> None:
        result, wanted = data(values).copy(), vals(values)
        open_ = np.ones(result.shape, bool)
        where = np.full(wanted.shape, missing, np.int64)
        for place in range(_EIGHT):
            found = (result == wanted[:, place, None]) & open_
            rows = np.flatnonzero(found.any(1))
            first = found[rows].argmax(1)
            result[rows, first], open_[rows, first] = each.imm.value, False
            where[rows, place] = first
        write(values, result)
        if places is not None:
            places(values, where)

    return run


def stream_shuffle(each: StreamShuffle, unit: Unit) -> Run:
    """dst[q + i] = src[q + mask[i]] in every quadrant q."""
    src, dst = unit.part(each.src), unit.part(each.dst)
    partition = np.arange(each.dst.partitions)
    lane = np.array(each.mask)[partition % _QUADRANT]
    moves = (lane != _STAYS)[:, None]
    source = np.where(lane == _STAYS, partition, partition // _QUADRANT * _QUADRANT + lane)
    wanted = np.zeros((each.src.partitions, 1), bool)
    wanted[source[moves[:, 0]]] = True
    return lambda values: dst.move(values, src.bits(values, wanted)[source], moves)


def vector_transpose(each: VectorTranspose, unit: Unit) -> Run:
    """dst = dataᵀ."""
    bits, move = unit.bits(each.data), unit.mover(each.dst)
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
"""Instruction -> what makes it a function."""
