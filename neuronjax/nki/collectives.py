"""`nki.collectives`: exchanges between ranks, the cores of a mesh that run a kernel together.

All ranks run the same kernel; `rank_id` tells them apart. Replica groups name every rank once, so
they also say how many there are. Under `jax.shard_map` a rank is a device, counted along the mesh.
`NOT_BUILT` names the functions that only say so on call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.errors import KernelError, UnsupportedProgramError, quoted
from neuronjax.nki.constants import Operator
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.refusal import checked, refusing, unknown
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
)
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp

__all__ = [
    "NOT_BUILT",
    "ReplicaGroup",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "rank_id",
    "reduce_scatter",
]

_RING = "the order of a ring is decided by the runtime; use collective_permute with its pairs"
_UNEVEN = "sizes that are known when the program runs have no instruction here"
NOT_BUILT: Mapping[str, str] = {
    "all_gather_v": _UNEVEN,
    "all_to_all_v": _UNEVEN,
    "collective_permute_implicit": _RING,
    "collective_permute_implicit_reduce": _RING,
    "collective_permute_implicit_current_processing_rank_id": _RING,
}
"""Function that raises ``UnsupportedProgramError`` on call -> the reason."""

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


@checked("nki.collectives.rank_id")
def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the number of the rank that runs the kernel."""
    trace = current()
    register = trace.register("rank")
    trace.rank_line = trace.line()
    trace.add(RankId(dst=register))
    return VirtualRegister(register)


def _exchange(
    kind: type[GroupCollective],
    srcs: Tensors,
    dsts: Tensors,
    group: ReplicaGroup,
    priority: int | None,
    **fields: Any,
) -> None:
    if not isinstance(group, ReplicaGroup):
        raise UnsupportedProgramError(
            f"{current().line()}: replica_group={quoted(group)}; pass a "
            "nki.collectives.ReplicaGroup."
        )
    ranks = sum(map(len, group.groups))
    _add(kind, ranks, srcs, dsts, groups=group.groups, priority=priority, **fields)


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


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in NOT_BUILT:
        raise unknown("nki.collectives", name, __dir__())
    return refusing(f"nki.collectives.{name}", NOT_BUILT[name])


def __dir__() -> list[str]:
    return [*__all__, *NOT_BUILT]
