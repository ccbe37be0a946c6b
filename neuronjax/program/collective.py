"""Collectives between the ranks of a program, done by the collective cores of the chip.

`groups` are the replica groups: each rank is in one. `stream` is the queue of collectives; streams
run beside each other, collectives of one stream in order. The Sync engine starts them: which
sequencer does is documented nowhere, and it has no other work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, WRITE, Instruction
from neuronjax.program.operand import Access, Register
from neuronjax.program.operators import AluOp

_SYNC = (Engine.SYNC,)
_PAGE = "NKI collectives {}; Neuron docs, collectives"

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveInstruction(Instruction):
    """What all collectives have: source and result tensors, one for one."""

    dsts: tuple[Access, ...] = field(metadata=WRITE)
    srcs: tuple[Access, ...] = field(metadata=READ)
    stream: int = 0
    priority: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCollective(CollectiveInstruction):
    """What collectives over groups have."""

    groups: Groups


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce(GroupCollective):
    """Every rank gets op over the sources of its group, in float32."""

    mnemonic: ClassVar[str] = "all_reduce"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("all_reduce")

    op: AluOp = AluOp.ADD


@dataclass(frozen=True, kw_only=True, slots=True)
class AllGather(GroupCollective):
    """Every rank gets the sources of its group, side by side along `dimension`."""

    mnemonic: ClassVar[str] = "all_gather"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("all_gather")

    dimension: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceScatter(GroupCollective):
    """Every rank gets its share along `dimension` of op over the sources of its group."""

    mnemonic: ClassVar[str] = "reduce_scatter"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("reduce_scatter")

    op: AluOp = AluOp.ADD
    dimension: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AllToAll(GroupCollective):
    """Every rank sends share i along `dimension` to rank i of its group, and joins what it gets."""

    mnemonic: ClassVar[str] = "all_to_all"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("all_to_all")

    dimension: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Permute(CollectiveInstruction):
    """Data goes from the first to the second rank of each pair."""

    mnemonic: ClassVar[str] = "collective_permute"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("collective_permute")

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankId(Instruction):
    """dst = the rank that runs the program."""

    mnemonic: ClassVar[str] = "rank_id"
    engines: ClassVar[tuple[Engine, ...]] = _SYNC
    page: ClassVar[str] = _PAGE.format("rank_id")

    dst: Register = field(metadata=WRITE)


INSTRUCTIONS: tuple[type[Instruction], ...] = (
    AllReduce, AllGather, ReduceScatter, AllToAll, Permute, RankId,
)  # fmt: skip
