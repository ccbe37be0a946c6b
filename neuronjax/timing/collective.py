"""Cost of collectives: `network` on the machine of the platform; rank i runs on core i."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.specs import Engine
from neuronjax.program import collective as program
from neuronjax.program.instruction import Instruction
from neuronjax.timing.cost import Cost, Message, Rule, sequencer
from neuronjax.timing.fabric import fabric_of
from neuronjax.timing.network import CollectiveTime, Op, timed
from neuronjax.timing.platform import Platform


def _cost(platform: Platform, op: Op, nbytes: int, ranks: tuple[int, ...], sent: float) -> Cost:
    """A collective of `nbytes`, of which each rank sends a share at least."""
    issue = sequencer(platform, Engine.SYNC)
    if len(set(ranks)) < 2:
        base = platform.calibration.collective_base_ns
        return issue + Cost(message=Message(latency_ns=base, wire_ns=0.0, nbytes=0))
    if platform.machine is None:
        raise UnsupportedProgramError(
            f"a collective of {len(ranks)} ranks on {platform.chip.name} cannot be timed without"
            " a machine, whose links it uses. Pass a machine."
        )
    fabric = fabric_of(platform.machine, ranks, in_program=True, calibration=platform.calibration)
    time: CollectiveTime = timed(op, nbytes, fabric)
    return issue + Cost(
        message=Message(
            latency_ns=time.latency_ns,
            wire_ns=time.wire_ns,
            nbytes=int(nbytes * sent),
            ranks=ranks,
        )
    )


def _grouped(op: Op, gathers: bool, sent: float) -> Rule:
    """A rule for replica groups: the largest of them decides; all run at once."""

    def rule(instruction: Any, platform: Platform) -> Cost:
        tensors = instruction.dsts if gathers else instruction.srcs
        nbytes = sum(access.nbytes for access in tensors)
        ranks = max(instruction.groups, key=len, default=())
        count = max(1, len(set(ranks)))
        return _cost(platform, op, nbytes, ranks, sent * (count - 1) / count)

    return rule


def _permute(instruction: program.Permute, platform: Platform) -> Cost:
    nbytes = sum(access.nbytes for access in instruction.srcs)
    farthest = max(instruction.pairs, key=lambda pair: abs(pair[0] - pair[1]), default=(0, 0))
    return _cost(platform, Op.PERMUTE, nbytes, farthest, 1.0)


def _ring(instruction: program.RingPermute, platform: Platform) -> Cost:
    nbytes = sum(access.nbytes for access in instruction.dsts)
    ranks = max(instruction.groups, key=len, default=())
    pairs = [(a, b) for a, b in zip(ranks, (*ranks[1:], *ranks[:1]), strict=True)]
    farthest = max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=(0, 0))
    return _cost(platform, Op.PERMUTE, nbytes, farthest, 1.0)


COSTS: Mapping[type[Instruction], Rule] = {
    # A rank sends half of what an all-reduce's factor counts in each of its two phases.
    program.AllReduce: _grouped(Op.ALL_REDUCE, gathers=False, sent=2.0),
    program.AllGather: _grouped(Op.ALL_GATHER, gathers=True, sent=1.0),
    program.ReduceScatter: _grouped(Op.REDUCE_SCATTER, gathers=False, sent=1.0),
    program.AllToAll: _grouped(Op.ALL_TO_ALL, gathers=False, sent=1.0),
    program.Permute: _permute,
    program.RingPermute: _ring,
    # What is sent is known to the program only; the whole tensors are the most it can be.
    program.UnevenAllGather: _grouped(Op.ALL_GATHER, gathers=True, sent=1.0),
    program.UnevenAllToAll: _grouped(Op.ALL_TO_ALL, gathers=False, sent=1.0),
    program.RankId: lambda instruction, platform: sequencer(platform, Engine.SYNC),
}
