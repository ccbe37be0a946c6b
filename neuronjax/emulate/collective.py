"""How collectives execute: what each rank sends, and what it receives. In a split, each core
exchanges data with the same core of other ranks.

Floating-point numbers are reduced in float32, in the order of the group, and rounded when they are
written; integers are exact and wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from neuronjax.emulate.arithmetic import ARITHMETIC
from neuronjax.emulate.chunks import Chunks
from neuronjax.emulate.exchange import Exchange, Sent
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Run, Unit, shape_of
from neuronjax.errors import CollectiveError
from neuronjax.program.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveInstruction,
    GroupCollective,
    Permute,
    RankId,
    ReduceScatter,
    RingPermute,
    UnevenAllGather,
    UnevenAllToAll,
)
from neuronjax.program.element_types import Integer
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp

Combine = Callable[[list[list[Array]], int], list[Array]]
"""(tensors of each rank of the group, index of a rank in the group) -> results of that rank."""


def all_reduce(instruction: AllReduce, unit: Unit) -> Exchange:
    """Every rank gets the reduction of the sources of its group by op."""
    return _in_group(
        instruction,
        unit,
        lambda sent, _: _reduced(sent, instruction.op),
        f" {instruction.op.value}",
    )


def all_gather(instruction: AllGather, unit: Unit) -> Exchange:
    """Every rank gets the concatenated sources of its group."""

    def combine(sent: list[list[Array]], _: int) -> list[Array]:
        return [np.concatenate(parts, instruction.dimension) for parts in zip(*sent, strict=True)]

    return _in_group(instruction, unit, combine, f" along {instruction.dimension}")


def reduce_scatter(instruction: ReduceScatter, unit: Unit) -> Exchange:
    """Every rank gets its share of the reduction of the sources of its group by op."""

    def combine(sent: list[list[Array]], place: int) -> list[Array]:
        totals = _reduced(sent, instruction.op)
        return [np.split(total, len(sent), instruction.dimension)[place] for total in totals]

    return _in_group(
        instruction, unit, combine, f" {instruction.op.value} along {instruction.dimension}"
    )


def all_to_all(instruction: AllToAll, unit: Unit) -> Exchange:
    """Every rank gets the concatenation of the shares that the ranks of its group have for it."""

    def combine(sent: list[list[Array]], place: int) -> list[Array]:
        count = len(sent)
        shares = ([np.split(part, count, instruction.dimension)[place] for part in parts]
                  for parts in zip(*sent, strict=True))  # fmt: skip
        return [np.concatenate(share, instruction.dimension) for share in shares]

    return _in_group(instruction, unit, combine, f" along {instruction.dimension}")


def permute(instruction: Permute, unit: Unit) -> Exchange:
    """Every rank gets what its source sends, or zeros if it has no source."""
    sources = {target: source for source, target in instruction.pairs}

    def combine(sent: Sent, rank: int) -> list[Array]:
        if rank in sources:
            return sent[sources[rank]]
        return [np.zeros_like(part) for part in sent[rank]]

    members, what = tuple(range(unit.ranks)), f" {instruction.pairs}"
    return _exchange(instruction, unit, members, combine, what)


def ring_permute(instruction: RingPermute, unit: Unit) -> Exchange:
    """Every rank gets what the rank before it in its group sends, or the reduction of that."""
    op = instruction.op

    def combine(sent: list[list[Array]], place: int) -> list[Array]:
        received = sent[place - 1]
        return received if op is None else [reduce(ARITHMETIC[op], received)]

    what = "" if op is None else f" {op.value}"
    return _in_group(instruction, unit, combine, what)


def uneven(instruction: UnevenAllGather | UnevenAllToAll, unit: Unit) -> Exchange:
    """Every rank gets chunks of other sizes from the ranks of its group."""
    (src,), group = instruction.srcs, _group(instruction, unit)
    read, counts = unit.bits(src), unit.part(instruction.counts)
    chunks = Chunks(unit, instruction, len(group))
    is_same = isinstance(instruction, UnevenAllGather)

    def send(values: Values) -> list[Array]:
        table = counts.bits(values, chunks.rows(2)).reshape(-1, len(group)).astype(np.int64)
        source = read(values).reshape(-1)
        columns = [0] * len(group) if is_same else range(len(group))
        return [chunks.taken(source, int(table[0, c]), int(table[1, c])) for c in columns]

    def combine(sent: Sent, receiver: int) -> list[Array]:
        place = group.index(receiver)
        return [sent[member][place].copy() for member in group]

    return Exchange(
        stream=_stream(instruction, unit),
        members=group,
        description=f"{instruction.mnemonic} of {_shown(instruction)} in {instruction.groups}",
        send=send,
        combine=combine,
        receive=lambda values, results: chunks.put(values, results),
    )


def rank_id(instruction: RankId, unit: Unit) -> Run:
    """dst = the rank, or one before it in its group."""
    place, rank = unit.frame.registers[instruction.dst.name], unit.core.rank
    if instruction.groups:
        group = _group(instruction, unit)
        rank = group[(group.index(rank) - instruction.steps) % len(group)]

    def run(values: Values) -> None:
        values[place] = rank

    return run


def _in_group(instruction: GroupCollective, unit: Unit, combine: Combine, what: str) -> Exchange:
    group = _group(instruction, unit)

    def of_group(sent: Sent, receiver: int) -> list[Array]:
        return combine([sent[member] for member in group], group.index(receiver))

    return _exchange(instruction, unit, group, of_group, f"{what} in groups {instruction.groups}")


def _group(instruction: GroupCollective | RankId, unit: Unit) -> tuple[int, ...]:
    """The group of the rank that runs an instruction."""
    rank = unit.core.rank
    group = next((group for group in instruction.groups if rank in group), None)
    if group is None:
        raise CollectiveError(
            f"{unit.place.path}: rank {rank} takes part in {instruction.mnemonic}, whose groups"
            f" {instruction.groups} do not include it. List every rank once."
        )
    return group


def _stream(instruction: CollectiveInstruction, unit: Unit) -> str:
    stream = f"collectives {instruction.stream}"
    return stream if unit.split_core is None else f"{stream} of core {unit.split_core}"


def _shown(instruction: CollectiveInstruction) -> str:
    return ", ".join(f"{a.element_type.name}{list(shape_of(a))}" for a in instruction.srcs)


def _exchange(
    instruction: CollectiveInstruction,
    unit: Unit,
    members: tuple[int, ...],
    combine: Callable[[Sent, int], list[Array]],
    what: str,
) -> Exchange:
    is_ring = isinstance(instruction, RingPermute) and instruction.op is None
    moves = is_ring or isinstance(instruction, Permute)
    reads = [_source(unit, src, moves) for src in instruction.srcs]
    writes = [unit.output(dst) for dst in instruction.dsts]

    def send(values: Values) -> list[Array]:
        return [read(values) for read in reads]

    def receive(values: Values, results: list[Array]) -> None:
        for write, result in zip(writes, results, strict=True):
            write(values, result)

    return Exchange(
        stream=_stream(instruction, unit),
        members=members,
        description=f"{instruction.mnemonic} of {_shown(instruction)}{what}",
        send=send,
        combine=combine,
        receive=receive,
    )


def _source(unit: Unit, access: Access, moves: bool) -> Callable[[Values], Array]:
    """Copies of elements in the shape of the access: integers as they are, numbers as float32."""
    keeps = moves or isinstance(access.element_type, Integer)
    read = unit.bits(access) if keeps else unit.numbers(access)
    shape = shape_of(access)
    return lambda values: read(values).reshape(shape).copy()


def _reduced(sent: list[list[Array]], op: AluOp) -> list[Array]:
    return [reduce(ARITHMETIC[op], parts) for parts in zip(*sent, strict=True)]


RULES: Rules = {
    AllReduce: all_reduce,
    AllGather: all_gather,
    ReduceScatter: reduce_scatter,
    AllToAll: all_to_all,
    Permute: permute,
    RingPermute: ring_permute,
    UnevenAllGather: uneven,
    UnevenAllToAll: uneven,
    RankId: rank_id,
}
"""Instruction -> rule that turns it into a function or an exchange."""
