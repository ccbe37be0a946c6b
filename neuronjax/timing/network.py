"""Collectives over the links of a machine: algorithms, their steps and the time of their data.

Sources: neuron-runtime/explore/intranode-collective-comm.rst and internode-collective-comm.rst
(algorithms, steps, hierarchy). An algorithm takes `steps · hop + data / bandwidth`, where the data
is limited by the links of a chip or by the DMA engines that a rank's collectives have, whichever is
slower. Of the algorithms that a group allows the fastest is taken; so time never falls with size.

Documented ranges on a 4×4 torus, for comparison: mesh below 1 MB, recursive doubling to 56 MB,
KangaRing above. The model leaves recursive doubling for KangaRing much earlier. Gathers and
scatters of a part of a topology, such as a row of a torus, go round a ring: eight ranks were
measured to take longer than all 32. All-reduces are routed through chips that take no part.

Ranks of a chip reach each other directly. So a ring goes from chip to chip: ranks that have the
same place on their chips have rings of their own, before or after the ranks of each chip exchange.

Between instances collectives are hierarchical. Trainium1 takes one ring over all ranks for large
data instead. Its ranks advance together, so each step takes what the slowest link does: the round
trip over EFA, of which as many are under way as the pipeline has stages.

A mesh and recursive doubling want queues to many ranks at once. A benchmark has them; in a program
the queues are those of its kernels, and its collectives go round rings (`in_program`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronjax.errors import TopologyError
from neuronjax.machine.machine import Machine
from neuronjax.timing.calibration import CALIBRATION, Calibration
from neuronjax.timing.fabric import GIGA, Fabric, Group, fabric_of, others_share

MOST_MESH_CHIPS = 128
MOST_KANGARING_RANKS = 256
"""NECH: limits of the algorithms."""


class Op(enum.Enum):
    """Collectives; values are the names of NKI."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "collective_permute"


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Time of a collective or of a part: steps, and data on its way."""

    latency_ns: float = 0.0
    wire_ns: float = 0.0

    def __add__(self, other: Steps) -> Steps:
        return Steps(
            latency_ns=self.latency_ns + other.latency_ns, wire_ns=self.wire_ns + other.wire_ns
        )

    @property
    def total_ns(self) -> float:
        return self.latency_ns + self.wire_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTime:
    """The time of a collective, and its reason."""

    op: Op
    algorithm: str
    nbytes: int
    ranks: int
    latency_ns: float
    wire_ns: float

    @property
    def total_ns(self) -> float:
        return self.latency_ns + self.wire_ns

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes/s: size over time."""
        return self.nbytes / self.total_ns * GIGA

    @property
    def bus_bandwidth(self) -> float:
        """Bytes/s that each rank moves: `nccom-test`'s factors."""
        return self.algorithm_bandwidth * BUS_FACTORS[self.op](self.ranks)


BUS_FACTORS: Mapping[Op, Callable[[int], float]] = {
    Op.ALL_REDUCE: lambda ranks: 2 * (ranks - 1) / ranks,
    Op.ALL_GATHER: lambda ranks: (ranks - 1) / ranks,
    Op.REDUCE_SCATTER: lambda ranks: (ranks - 1) / ranks,
    Op.ALL_TO_ALL: lambda ranks: (ranks - 1) / ranks,
    Op.PERMUTE: lambda ranks: 1.0,
}
"""Bus bandwidth over algorithm bandwidth (tools/neuron-sys-tools/nccom-test.rst)."""

# Phases: bytes are those of the whole tensor, gathered or to be reduced.
Phase = Callable[[float, Fabric, bool], Steps | None]
"""Bytes, fabric, whether data is reduced on its way -> time; None: not for this group."""


def _dma_ns(nbytes: float, fabric: Fabric, reduces: bool, share: float = 1.0) -> float:
    """DMA time of a rank for all but its own share; a reduction reads twice."""
    slower = fabric.timings.dma.compute_share if reduces else 1.0
    return nbytes * others_share(fabric.group.ranks) / (fabric.group.rate * share * slower)


def _ring(nbytes: float, fabric: Fabric, reduces: bool) -> Steps:
    group = fabric.group
    link = nbytes * others_share(group.chips) / group.ring if group.chips > 1 else 0.0
    return Steps(
        latency_ns=_ring_steps(group) * fabric.hop_ns,
        wire_ns=max(link, _dma_ns(nbytes, fabric, reduces)),
    )


def _ring_steps(group: Group) -> int:
    """The steps of a ring from chip to chip, and one within chips that have several ranks."""
    return group.chips - 1 + (group.ranks > group.chips)


def _kangaring(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """A ring with less HBM traffic: what a chip gets is written to two of its ranks at once."""
    group = fabric.group
    if group.ranks < 4 or not group.is_complete or group.ranks > MOST_KANGARING_RANKS:
        return None
    shares = fabric.timings.collectives
    share = shares.kangaring_scatter_share if reduces else shares.kangaring_gather_share
    return Steps(
        latency_ns=_ring_steps(group) * fabric.hop_ns,
        wire_ns=max(
            nbytes * others_share(group.chips) / group.ring,
            _dma_ns(nbytes, fabric, reduces) * share,
        ),
    )


def _doubling(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """Recursive doubling or halving: one link at a time, some steps over several hops."""
    group = fabric.group
    if group.ranks & (group.ranks - 1) or not group.is_meshed:
        return None
    link = nbytes * others_share(group.chips) / group.link if group.chips > 1 else 0.0
    return Steps(
        latency_ns=math.log2(group.ranks) * fabric.hop_ns,
        wire_ns=max(link * fabric.calibration.doubling_excess, _dma_ns(nbytes, fabric, reduces)),
    )


def _mesh(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """The steps of everybody sending to everybody: between chips, then within them."""
    group = fabric.group
    if group.chips > MOST_MESH_CHIPS or not group.is_meshed:
        return None
    link = 0.0
    if group.chips > 1:
        link = nbytes * others_share(group.chips) * group.hops / group.egress
    steps = 2 if 1 < group.chips < group.ranks else 1
    return Steps(
        latency_ns=steps * fabric.hop_ns,
        wire_ns=max(link, _dma_ns(nbytes, fabric, reduces, fabric.calibration.mesh_share)),
    )


PHASES: Mapping[str, Phase] = {
    "mesh": _mesh,
    "recursive doubling": _doubling,
    "kangaring": _kangaring,
    "ring": _ring,
}
"""Algorithms of gathering and of reducing, by name."""


def _single_step_mesh(nbytes: float, fabric: Fabric) -> Steps | None:
    """All-reduce of little data: everybody sends all to everybody, and adds."""
    mesh = _mesh(nbytes * fabric.group.ranks, fabric, True)
    return mesh and Steps(latency_ns=fabric.hop_ns, wire_ns=mesh.wire_ns)


def _exchange(nbytes: float, fabric: Fabric, share: float, steps: float) -> Steps:
    """Every rank has another share for every other one."""
    group = fabric.group
    link = 0.0
    if group.chips > 1:
        per_chip = nbytes * group.ranks / group.chips
        link = per_chip * others_share(group.chips) * group.hops / group.egress
    return Steps(
        latency_ns=steps * fabric.hop_ns,
        wire_ns=max(link, _dma_ns(nbytes, fabric, False, share)),
    )


def _phased(nbytes: float, fabric: Fabric, phases: Sequence[bool]) -> dict[str, Steps]:
    """Every algorithm for a sequence of phases: True reduces, False gathers."""
    by_name: dict[str, Steps] = {}
    for name, phase in PHASES.items():
        parts = [phase(nbytes, fabric, reduces) for reduces in phases]
        if all(parts):
            by_name[name] = sum((part for part in parts if part), Steps())
    return by_name


def _all_reduce(nbytes: float, fabric: Fabric) -> dict[str, Steps]:
    fabric = replace(fabric, group=replace(fabric.group, is_meshed=True))
    phased = _phased(nbytes, fabric, (True, False))
    single = _single_step_mesh(nbytes, fabric)
    return phased | ({"single-step mesh": single} if single else {})


def _all_to_all(nbytes: float, fabric: Fabric) -> dict[str, Steps]:
    ranks = fabric.group.ranks
    return {
        "mesh": _exchange(nbytes, fabric, fabric.calibration.mesh_share, 1),
        "pairwise": _exchange(nbytes, fabric, 1.0, ranks - 1),
    }


def _permute(nbytes: float, fabric: Fabric) -> dict[str, Steps]:
    group = fabric.group
    hops = max(1.0, group.hops)
    link = nbytes * hops / group.link if group.chips > 1 else 0.0
    return {
        "direct": Steps(latency_ns=hops * fabric.hop_ns, wire_ns=max(link, nbytes / group.rate))
    }


INSIDE: Mapping[Op, Callable[[float, Fabric], dict[str, Steps]]] = {
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_GATHER: lambda nbytes, fabric: _phased(nbytes, fabric, (False,)),
    Op.REDUCE_SCATTER: lambda nbytes, fabric: _phased(nbytes, fabric, (True,)),
    Op.ALL_TO_ALL: _all_to_all,
    Op.PERMUTE: _permute,
}
"""What may be done within an instance: algorithm -> time."""

NETWORK_PASSES: Mapping[Op, int] = {
    Op.ALL_REDUCE: 2,
    Op.ALL_GATHER: 1,
    Op.REDUCE_SCATTER: 1,
    Op.ALL_TO_ALL: 1,
    Op.PERMUTE: 1,
}
"""How often the data that belongs to other instances crosses the network."""


TO_MANY = frozenset({"mesh", "single-step mesh", "recursive doubling"})
"""Algorithms in which a rank sends to more than its neighbours."""


def _fastest(nbytes: float, fabric: Fabric, op: Op) -> tuple[str, Steps]:
    candidates = INSIDE[op](nbytes, fabric).items()
    allowed = [
        candidate for candidate in candidates if not (fabric.in_program and candidate[0] in TO_MANY)
    ]
    return min(allowed, key=lambda item: (item[1].total_ns, item[0]))


def _between(nbytes: float, fabric: Fabric, op: Op) -> Steps:
    """The part between instances: every rank with those at its place in the others."""
    passes = NETWORK_PASSES[op]
    share = fabric.group.ranks if op in (Op.ALL_TO_ALL, Op.PERMUTE) else 1
    steps = passes * math.ceil(math.log2(fabric.instances))
    return Steps(
        latency_ns=steps * fabric.timings.collectives.host_hop_ns,
        wire_ns=passes * share * nbytes * others_share(fabric.instances) / fabric.network,
    )


def _pipelined(first: Steps, second: Steps, stages: int) -> Steps:
    """Both parts in turn, in stages: the slower one, and a stage of the other."""
    slow, fast = max(first.wire_ns, second.wire_ns), min(first.wire_ns, second.wire_ns)
    return Steps(latency_ns=first.latency_ns + second.latency_ns, wire_ns=slow + fast / stages)


RING_PHASES: Mapping[Op, tuple[bool, ...]] = {
    Op.ALL_REDUCE: (True, False),
    Op.ALL_GATHER: (False,),
    Op.REDUCE_SCATTER: (True,),
}
"""What goes round a ring over all ranks: True reduces, False gathers."""


def _flat_ring(nbytes: float, fabric: Fabric, phases: Sequence[bool]) -> Steps:
    """The steps of a ring over the ranks of all instances, in lock step."""
    timings, ranks = fabric.timings.collectives, fabric.group.ranks * fabric.instances
    every = replace(fabric, group=replace(fabric.group, ranks=ranks))
    on_chips = Steps(wire_ns=sum(_dma_ns(nbytes, every, reduces) for reduces in phases))
    sent = Steps(
        latency_ns=len(phases) * (ranks - 1) * 2 * timings.host_hop_ns / timings.pipeline_stages,
        wire_ns=len(phases) * nbytes * others_share(ranks) / fabric.network,
    )
    return _pipelined(on_chips, sent, timings.pipeline_stages)


def _over_instances(op: Op, nbytes: int, fabric: Fabric) -> tuple[str, Steps]:
    timings = fabric.timings.collectives
    if op in RING_PHASES and nbytes >= timings.flat_ring_bytes:
        return "flat ring", _flat_ring(nbytes, fabric, RING_PHASES[op])
    name, inside = _inside(op, nbytes, fabric)
    between = _between(nbytes, fabric, op)
    return f"hierarchical {name}", _pipelined(inside, between, timings.pipeline_stages)


def _inside(op: Op, nbytes: int, fabric: Fabric) -> tuple[str, Steps]:
    return _fastest(nbytes, fabric, op) if fabric.group.ranks > 1 else ("none", Steps())


def timed(op: Op, nbytes: int, fabric: Fabric) -> CollectiveTime:
    """A collective of `nbytes` on a fabric."""
    ranks = fabric.group.ranks * fabric.instances
    way = _over_instances if fabric.instances > 1 else _inside
    name, steps = way(op, nbytes, fabric)
    base = fabric.calibration.collective_base_ns
    return CollectiveTime(
        op=op,
        algorithm=name,
        nbytes=nbytes,
        ranks=ranks,
        latency_ns=base + steps.latency_ns,
        wire_ns=steps.wire_ns,
    )


def collective_time(
    op: Op | str,
    nbytes: int,
    ranks: int | Sequence[int],
    machine: Machine,
    *,
    concurrent: int = 1,
    in_program: bool = False,
    calibration: Calibration = CALIBRATION,
) -> CollectiveTime:
    """Returns the time of a collective without a program.

    `nbytes` counts as in `nccom-test`: the reduced, gathered or exchanged tensor of a rank. `ranks`
    is a number of neighbouring cores, or the cores of one group; what lies beyond the machine is on
    further instances of the same kind. `concurrent` such collectives share the links; one
    `in_program` leaves queues to kernels.

    TopologyError: fewer than two ranks, or less than a byte.
    """
    cores = range(ranks) if isinstance(ranks, int) else ranks
    if len(cores) < 2 or nbytes < 1:
        raise TopologyError(
            f"a collective of {nbytes} bytes over {len(cores)} ranks cannot be timed: it needs at"
            " least one byte and two ranks"
        )
    fabric = fabric_of(
        machine,
        cores,
        groups_per_chip=concurrent,
        in_program=in_program,
        calibration=calibration,
    )
    return timed(Op(op), nbytes, fabric)
