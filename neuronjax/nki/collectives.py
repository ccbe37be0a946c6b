"""`nki.collectives`: exchanges between ranks, the cores of a mesh that run a kernel together.

All ranks run the same kernel; `rank_id` tells them apart. Replica groups name every rank once, so
they also say how many there are. Under `jax.shard_map` a rank is a device, counted along the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neuronjax.errors import KernelError, UnsupportedProgramError, quoted
from neuronjax.nki.constants import Operator
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.known_failures import note_call
from neuronjax.nki.refusal import checked, unknown
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace, current
from neuronjax.program.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveInstruction,
    GroupCollective,
    Groups,
    Permute,
    RankId,
    ReduceScatter,
    RingPermute,
    UnevenAllGather,
    UnevenAllToAll,
)
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]

_REDUCTIONS = (AluOp.ADD, AluOp.MINIMUM, AluOp.MAXIMUM)

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class ReplicaGroup:
    """The ranks that exchange data with each other: `ReplicaGroup([[0, 1], [2, 3]])` has two groups
    of two. Every rank is in one group, and all groups have the same size."""

    groups: Groups

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        """KernelError: these are no such groups."""
        try:
            members = tuple(tuple(int(rank) for rank in group) for group in groups)
        except (TypeError, ValueError):
            raise KernelError(
                f"ReplicaGroup({quoted(groups)}): pass lists of ranks, such as [[0, 1], [2, 3]]."
            ) from None
        ranks = sorted(rank for group in members for rank in group)
        if not ranks or ranks != list(range(len(ranks))) or len(set(map(len, members))) > 1:
            raise KernelError(
                f"ReplicaGroup({quoted(groups)}): groups have one size, and every rank from 0 on "
                "is in one of them."
            )
        object.__setattr__(self, "groups", members)


@checked("nki.collectives.all_reduce")
def all_reduce(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    op: Operator,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """`dsts` of every rank = the sources of its group, reduced by nl.add, nl.minimum or
    nl.maximum. All tensors lie in HBM or all in SBUF; several at once in HBM only."""
    _exchange(AllReduce, srcs, dsts, replica_group, priority, op=_reduction("all_reduce", op))


@checked("nki.collectives.all_gather")
def all_gather(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """`dsts` of every rank = the sources of its group, one after the other along dimension 0 or, in
    SBUF, 1."""
    _exchange(AllGather, srcs, dsts, replica_group, priority, dimension=collective_dim)


@checked("nki.collectives.reduce_scatter")
def reduce_scatter(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Operator,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """`dsts` of every rank = its share along dimension 0 of the reduced sources of its group."""
    reduction = _reduction("reduce_scatter", op)
    _exchange(
        ReduceScatter, srcs, dsts, replica_group, priority, dimension=collective_dim, op=reduction
    )


@checked("nki.collectives.all_to_all")
def all_to_all(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """`dsts` of every rank = the shares along dimension 0 that the ranks of its group have for it,
    one after the other, in HBM."""
    _exchange(AllToAll, srcs, dsts, replica_group, priority, dimension=collective_dim)


@checked("nki.collectives.collective_permute")
def collective_permute(
    srcs: Tensors,
    dsts: Tensors,
    source_target_pairs: Sequence[Sequence[int]],
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """The first rank of each pair sends its source, in HBM, to the second."""
    trace = current()
    try:
        pairs = tuple((int(source), int(target)) for source, target in source_target_pairs)
    except (TypeError, ValueError):
        raise UnsupportedProgramError(
            f"{trace.line()}: source_target_pairs={quoted(source_target_pairs)}; pass pairs of "
            "ranks, such as [[0, 1], [1, 0]]."
        ) from None
    ranks = 1 + max((rank for pair in pairs for rank in pair), default=0)
    _add(Permute, ranks, srcs, dsts, pairs=pairs, priority=priority)


@checked("nki.collectives.collective_permute_implicit")
def collective_permute_implicit(
    srcs_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank sends its source to the next rank of its group, in the group's order, the last one
    to the first. Channels have a tensor each, and a stream of their own."""
    given = {"srcs_by_channel": srcs_by_channel, "dsts_by_channel": dsts_by_channel}
    _around(replica_group, channel_ids, given, priority=priority)


@checked("nki.collectives.collective_permute_implicit_reduce")
def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Tensors],
    srcs1_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    op: Operator,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """`collective_permute_implicit` of op(srcs0, srcs1), which is nl.add, nl.minimum or
    nl.maximum."""
    given = {
        "srcs0_by_channel": srcs0_by_channel,
        "srcs1_by_channel": srcs1_by_channel,
        "dsts_by_channel": dsts_by_channel,
    }
    reduction = _reduction("collective_permute_implicit_reduce", op)
    _around(replica_group, channel_ids, given, priority=priority, op=reduction)


@checked("nki.collectives.collective_permute_implicit_current_processing_rank_id")
def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int,
    replica_group: ReplicaGroup,
    channel_id: int = 0,
    name: str | None = None,
) -> VirtualRegister:
    """A register with the rank whose data a rank has after `iteration_id` steps around the ring: at
    0 its own, then that of the one before it.

    UnsupportedProgramError: a number that is not known when the kernel is traced.
    """
    trace = current()
    groups = _groups_of(replica_group)
    for parameter, value in (("iteration_id", iteration_id), ("channel_id", channel_id)):
        if not isinstance(value, int) or value < 0:
            raise UnsupportedProgramError(
                f"{trace.line()}: {parameter}={quoted(value)}; pass an integer from 0 on that is "
                "known when the kernel is traced."
            )
    trace.exchanges_between(sum(map(len, groups)))
    register = trace.register("rank")
    trace.add(RankId(dst=register, groups=groups, steps=iteration_id))
    return VirtualRegister(register)


@checked("nki.collectives.all_gather_v")
def all_gather_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: Tensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank gets a chunk of the source of each rank of its group, in HBM. The rows of
    `metadata_tensor`, uint32, have in their first column its size and where it begins, and then how
    many elements came from each rank."""
    counts = _counts(metadata_tensor, recv_counts_known, has_rdispls)
    _exchange(UnevenAllGather, srcs, dsts, replica_group, priority, **counts)


@checked("nki.collectives.all_to_all_v")
def all_to_all_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: Tensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank gets the chunk that each rank of its group has for it, in HBM. The rows of
    `metadata_tensor`, uint32, have for each rank the size of its chunk, where that begins, how many
    elements came from it and, with `has_rdispls`, where these go."""
    counts = _counts(metadata_tensor, recv_counts_known, has_rdispls)
    note_call(current(), "nki.collectives.all_to_all_v", {"has_rdispls": has_rdispls})
    _exchange(UnevenAllToAll, srcs, dsts, replica_group, priority, **counts)


@checked("nki.collectives.rank_id")
def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the number of the rank that runs the kernel."""
    trace = current()
    register = trace.register("rank")
    trace.rank_line = trace.line()
    trace.add(RankId(dst=register))
    return VirtualRegister(register)


def _counts(metadata: Tensor, knows_received: bool, has_places: bool) -> dict[str, Access | bool]:
    if not isinstance(metadata, Tensor):
        raise UnsupportedProgramError(
            f"{current().line()}: metadata_tensor={quoted(metadata)}; pass a tensor of uint32 with "
            "a row of counts, one of places, and one for the counts that are received."
        )
    return {
        "counts": metadata.access(),
        "knows_received": bool(knows_received),
        "has_places": bool(has_places),
    }


_CHANNELS = 4
"""The most channels of a ring (NKI collectives, collective_permute_implicit)."""


def _around(
    group: ReplicaGroup,
    channels: Sequence[int],
    given: Mapping[str, Sequence[Tensors]],
    **fields: Any,
) -> None:
    """Writes an exchange around rings for each channel; the last of the tensors are results."""
    trace, groups = current(), _groups_of(group)
    numbers = list(channels) if isinstance(channels, list | tuple) else [None]
    if numbers != list(range(len(numbers))) or not 0 < len(numbers) <= _CHANNELS:
        raise UnsupportedProgramError(
            f"{trace.line()}: channel_ids={quoted(channels)}; pass [0], [0, 1] and so on, up to "
            f"{_CHANNELS} channels."
        )
    for parameter, tensors in given.items():
        is_fitting = isinstance(tensors, list | tuple) and len(tensors) == len(numbers)
        if not is_fitting or not all(isinstance(t, list | tuple) and len(t) == 1 for t in tensors):
            raise UnsupportedProgramError(
                f"{trace.line()}: {parameter}={quoted(tensors)}; pass a list of one tensor for "
                f"each of the {len(numbers)} channels."
            )
    *sources, results = given.values()
    for channel in numbers:
        srcs = [tensors[channel][0] for tensors in sources]
        ranks = sum(map(len, groups))
        _add(RingPermute, ranks, srcs, results[channel], groups=groups, stream=channel, **fields)


def _exchange(
    kind: type[GroupCollective],
    srcs: Tensors,
    dsts: Tensors,
    group: ReplicaGroup,
    priority: int | None,
    **fields: Any,
) -> None:
    groups = _groups_of(group)
    ranks = sum(map(len, groups))
    _add(kind, ranks, srcs, dsts, groups=groups, priority=priority, **fields)


def _groups_of(group: ReplicaGroup) -> Groups:
    if not isinstance(group, ReplicaGroup):
        raise UnsupportedProgramError(
            f"{current().line()}: replica_group={quoted(group)}; pass a "
            "nki.collectives.ReplicaGroup."
        )
    return group.groups


def _add(
    kind: type[CollectiveInstruction], ranks: int, srcs: Tensors, dsts: Tensors, **fields: Any
) -> None:
    """Writes an exchange between so many ranks; `fields` are those of the instruction."""
    trace = current()
    trace.exchanges_between(ranks)
    sources, targets = _accesses(trace, "srcs", srcs), _accesses(trace, "dsts", dsts)
    trace.add(kind(srcs=sources, dsts=targets, **fields))


def _accesses(trace: Trace, parameter: str, tensors: Tensors) -> tuple[Access, ...]:
    if not isinstance(tensors, list | tuple) or not all(isinstance(t, Tensor) for t in tensors):
        raise UnsupportedProgramError(
            f"{trace.line()}: {parameter}={quoted(tensors)}; pass a list of tensors."
        )
    return tuple(tensor.access() for tensor in tensors)


def _reduction(function: str, op: Operator) -> AluOp:
    known = {operator.value: operator for operator in _REDUCTIONS}
    if not isinstance(op, Operator) or op.name not in known:
        raise UnsupportedProgramError(
            f"{current().line()}: nki.collectives.{function} takes no op={quoted(op)}; pass "
            "nl.add, nl.minimum or nl.maximum."
        )
    return known[op.name]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        raise unknown("nki.collectives", name, __all__)


def __dir__() -> list[str]:
    return [*__all__]
