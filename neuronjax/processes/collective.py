"""What collectives compute, over the ranks of this process and messages to the others.

A collective gets the operands of this process's members of a group, and returns their results.
Operands are memory of their replicas, which go on when they have their results: no result may be an
operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from neuronjax.processes.reduction import Reduction, begin, take

Operands = Mapping[int, Sequence[np.ndarray]]
"""Rank -> its operands, for the members of a group that this process has, in the group's order."""
Outputs = dict[int, list[np.ndarray]]


class Channel(Protocol):
    """Messages of one collective of one run."""

    @property
    def index(self) -> int:
        """Number of this process."""

    def process_of(self, rank: int) -> int:
        """The process that has a rank."""

    def send(self, process: int, label: int, arrays: Sequence[np.ndarray]) -> None:
        """Sends arrays to another process."""

    def receive(self, process: int, label: int, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Waits for arrays, of the shapes and types of ``like``, that a process sends."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program: ``groups`` are of global ranks, and ``run`` serves one group."""

    kind: str
    groups: tuple[tuple[int, ...], ...]
    run: Callable[[tuple[int, ...], Operands, Channel], Outputs]


def processes_of(group: Sequence[int], channel: Channel) -> list[int]:
    """The processes of a group's ranks, in order of their first rank."""
    return list(dict.fromkeys(map(channel.process_of, group)))


def gathered(group: Sequence[int], operands: Operands, channel: Channel) -> list[list[np.ndarray]]:
    """The operands of every rank of a group, in its order."""
    mine = list(operands)
    flat = [array for rank in mine for array in operands[rank]]
    others = [p for p in processes_of(group, channel) if p != channel.index]
    for process in others:
        channel.send(process, 0, flat)
    like = operands[mine[0]]
    known: dict[int, Sequence[np.ndarray]] = dict(operands)
    for process in others:
        ranks = [rank for rank in group if channel.process_of(rank) == process]
        known |= _by_rank(ranks, channel.receive(process, 0, list(like) * len(ranks)))
    return [list(known[rank]) for rank in group]


def _by_rank(ranks: Sequence[int], flat: Sequence[np.ndarray]) -> dict[int, Sequence[np.ndarray]]:
    count = len(flat) // len(ranks)
    return {rank: flat[i * count : (i + 1) * count] for i, rank in enumerate(ranks)}


def reduced(
    group: Sequence[int], operands: Operands, channel: Channel, reductions: Sequence[Reduction]
) -> list[np.ndarray]:
    """The reduction of every operand over the ranks of a group, in their order.

    A total goes from process to process as the order of ranks asks for; the last one tells all.
    """
    like = operands[next(iter(operands))]
    stretches = [
        (process, list(ranks)) for process, ranks in groupby(group, key=channel.process_of)
    ]
    last = stretches[-1][0]
    neutral = [begin(reduction, array) for reduction, array in zip(reductions, like, strict=True)]
    totals = neutral
    for position, (process, ranks) in enumerate(stretches):
        if process != channel.index:
            continue
        if position:
            before = stretches[position - 1][0]
            totals = channel.receive(before, position, neutral)
        for index, (reduction, total) in enumerate(zip(reductions, totals, strict=True)):
            take(reduction, total, (operands[rank][index] for rank in ranks))
        if position + 1 < len(stretches):
            channel.send(stretches[position + 1][0], position + 1, totals)
    others = [process for process in processes_of(group, channel) if process != last]
    if channel.index == last:
        for process in others:
            channel.send(process, 0, totals)
        return totals
    return channel.receive(last, 0, like)


def all_gather(axis: int) -> Callable[[tuple[int, ...], Operands, Channel], Outputs]:
    """The run of an all-gather: operands of all ranks behind each other along a dimension."""

    def run(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
        every = gathered(group, operands, channel)
        joined = [np.concatenate(arrays, axis) for arrays in zip(*every, strict=True)]
        return dict.fromkeys(operands, joined)

    return run


def all_reduce(
    reductions: Sequence[Reduction],
) -> Callable[[tuple[int, ...], Operands, Channel], Outputs]:
    """The run of an all-reduce: every rank gets the same totals."""

    def run(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
        totals = reduced(group, operands, channel, reductions)
        return dict.fromkeys(operands, totals)

    return run


def reduce_scatter(
    axis: int, reductions: Sequence[Reduction]
) -> Callable[[tuple[int, ...], Operands, Channel], Outputs]:
    """A share of the totals for each rank."""

    def run(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
        totals = reduced(group, operands, channel, reductions)
        shares = [np.split(total, len(group), axis) for total in totals]
        return {rank: [split[group.index(rank)] for split in shares] for rank in operands}

    return run


def all_to_all(
    split: int, joined: int, count: int
) -> Callable[[tuple[int, ...], Operands, Channel], Outputs]:
    """The k-th share of each rank goes to the k-th rank of the group."""

    def run(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
        shares = {
            rank: [np.split(array, count, split) for array in arrays]
            for rank, arrays in operands.items()
        }
        place = {rank: k for k, rank in enumerate(group)}
        members: dict[int, list[int]] = {}
        for rank in group:
            members.setdefault(channel.process_of(rank), []).append(rank)
        mine = members.pop(channel.index)
        for process, ranks in members.items():
            flat = [parts[place[to]] for rank in mine for to in ranks for parts in shares[rank]]
            channel.send(process, 0, flat)
        pieces = {
            (rank, to): [parts[place[to]] for parts in shares[rank]] for rank in mine for to in mine
        }
        like = [parts[0] for parts in shares[mine[0]]]
        for process, ranks in members.items():
            pairs = [(rank, to) for rank in ranks for to in mine]
            flat = channel.receive(process, 0, like * len(pairs))
            for number, pair in enumerate(pairs):
                pieces[pair] = flat[number * len(like) : (number + 1) * len(like)]
        return {
            to: [
                np.concatenate([pieces[rank, to][index] for rank in group], joined)
                for index in range(len(like))
            ]
            for to in mine
        }

    return run


def broadcast(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
    """The operands of the group's first rank, for every rank."""
    root = channel.process_of(group[0])
    if root == channel.index:
        values = [array.copy() for array in operands[group[0]]]
        for process in processes_of(group, channel):
            if process != root:
                channel.send(process, 0, values)
    else:
        values = channel.receive(root, 0, operands[next(iter(operands))])
    return dict.fromkeys(operands, values)


def permute(
    pairs: Sequence[tuple[int, int]],
) -> Callable[[tuple[int, ...], Operands, Channel], Outputs]:
    """Operands of a pair's source for its target; zeros for who is nobody's target."""
    source_of = {target: source for source, target in pairs}

    def run(group: tuple[int, ...], operands: Operands, channel: Channel) -> Outputs:
        for source, target in pairs:
            process = channel.process_of(target)
            if source in operands and process != channel.index:
                channel.send(process, target, operands[source])
        outputs: Outputs = {}
        for rank, own in operands.items():
            source = source_of.get(rank, -1)
            if source < 0:
                outputs[rank] = [np.zeros_like(array) for array in own]
            elif source in operands:
                outputs[rank] = [array.copy() for array in operands[source]]
            else:
                outputs[rank] = channel.receive(channel.process_of(source), rank, own)
        return outputs

    return run
