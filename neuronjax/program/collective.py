"""Collectives between the ranks of a program, executed by the collective cores of the chip.

`groups` are the replica groups: every rank is in exactly one. `stream` is the queue of collectives;
streams run concurrently, collectives of one stream in order. The Sync engine starts them: AWS does
not document which sequencer does, and Sync has no other work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, UPDATE, WRITE, Instruction, instruction
from neuronjax.program.operand import Access, Register
from neuronjax.program.operators import AluOp

_SYNC = (Engine.SYNC,)
_PAGE = "NKI collectives {}; Neuron docs, collectives"

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveInstruction(Instruction):
    """The fields of all collectives: source tensors and as many result tensors."""

    dsts: tuple[Access, ...] = field(metadata=WRITE)
    srcs: tuple[Access, ...] = field(metadata=READ)
    stream: int = 0
    priority: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCollective(CollectiveInstruction):
    """The fields of collectives over groups."""

    groups: Groups


@instruction("all_reduce", _SYNC, page=_PAGE.format("all_reduce"))
class AllReduce(GroupCollective):
    """Every rank gets the reduction of the sources of its group by op, in float32."""

    op: AluOp = AluOp.ADD


@instruction("all_gather", _SYNC, page=_PAGE.format("all_gather"))
class AllGather(GroupCollective):
    """Every rank gets the sources of its group, concatenated along `dimension`."""

    dimension: int = 0


@instruction("reduce_scatter", _SYNC, page=_PAGE.format("reduce_scatter"))
class ReduceScatter(GroupCollective):
    """Every rank gets its share along `dimension` of the reduced sources of its group."""

    op: AluOp = AluOp.ADD
    dimension: int = 0


@instruction("all_to_all", _SYNC, page=_PAGE.format("all_to_all"))
class AllToAll(GroupCollective):
    """Every rank gets the shares along `dimension` that its group has for it, concatenated."""

    dimension: int = 0


@instruction("collective_permute", _SYNC, page=_PAGE.format("collective_permute"))
class Permute(CollectiveInstruction):
    """The first rank of every pair sends to the second."""

    pairs: tuple[tuple[int, int], ...]


@instruction("collective_permute_implicit", _SYNC, page=_PAGE.format("collective_permute_implicit"))
class RingPermute(GroupCollective):
    """Every rank sends to the next one of its group, the last one to the first: its source or, with
    op, the reduction of its two sources."""

    op: AluOp | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Uneven(GroupCollective):
    """The fields of collectives whose sizes the program knows: sources and results are flat.

    The rows of `counts` have, for every rank of the group: how many elements it is sent, where they
    begin in the source, how many came from it, which is written unless `knows_received`, and where
    these begin in the result, if there is such a row. Without one the result has a slot of one size
    for each rank.
    """

    counts: Access = field(metadata=UPDATE)
    knows_received: bool = False
    has_places: bool = False


@instruction("all_gather_v", _SYNC, page=_PAGE.format("all_gather_v"))
class UnevenAllGather(Uneven):
    """Every rank gets a chunk of each rank of its group: the same for all, of the first column."""


@instruction("all_to_all_v", _SYNC, page=_PAGE.format("all_to_all_v"))
class UnevenAllToAll(Uneven):
    """Every rank gets the chunk that each rank of its group has for it."""


@instruction("rank_id", _SYNC, page=_PAGE.format("rank_id"))
class RankId(Instruction):
    """dst = the rank that runs the program, or the one that is so many steps before it in its
    group, the last one before the first."""

    dst: Register = field(metadata=WRITE)
    groups: Groups = ()
    steps: int = 0
