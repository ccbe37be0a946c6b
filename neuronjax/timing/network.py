"""Collectives over the links of a machine: algorithms, their steps and the time of their data.

Sources: neuron-runtime/explore/intranode-collective-comm.rst and internode-collective-comm.rst
(algorithms, steps, hierarchy). An algorithm takes `steps · hop + data / bandwidth`, where the data
is limited by the links of a chip or by the DMA engines that a rank's collectives have, whichever is
slower. Of the algorithms that a group allows the fastest is taken; so time never falls with size.

Documented ranges on a 4×4 torus, for comparison: mesh below 1 MB, recursive doubling to 56 MB,
KangaRing above. The model leaves recursive doubling for KangaRing much earlier. Mesh and recursive
doubling use the links of a whole topology; a part of one, such as a row of a torus, is a ring.

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
from neuronjax.machine.timings import TIMINGS, Timings
from neuronjax.machine.topology import Wiring
from neuronjax.timing.calibration import CALIBRATION, Calibration

GIGA = 1e9

LINK_DIRECTIONS = 2
"""Printed link bandwidths count both directions: hw/trn3-arch says so, the others do not say."""

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
class Group:
    """Where the ranks of one replica group lie within an instance. Bandwidths are bytes/ns."""

    ranks: int
    chips: int
    #: Whether the group has all cores of its chips.
    is_complete: bool
    #: Whether each of its chips can reach each other one over links of the group alone: it has all
    #: chips of the topology, or a switch between them, or one chip.
    is_meshed: bool
    #: Mean links between two of its chips.
    hops: float
    #: What a chip can send over all its links to others of the group, and over one.
    egress: float
    link: float
    #: What the DMA engines of one rank's collectives move.
    rate: float
    #: Groups at once that share the links and the network of a chip.
    sharing: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """A group, the timings of its chips, and how many instances it spans."""

    group: Group
    timings: Timings
    calibration: Calibration
    #: Whether kernels have the queues that a collective alone would have.
    in_program: bool = False
    instances: int = 1
    #: What the group's part of an instance sends to others over EFA, in bytes/ns.
    network: float = 0.0

    @property
    def hop_ns(self) -> float:
        """One step of an algorithm."""
        return self.timings.collectives.hop_ns


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
    """How long a collective takes, and why."""

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


def _others(count: int) -> float:
    """The share that does not come from oneself."""
    return (count - 1) / count


def _dma_ns(nbytes: float, fabric: Fabric, reduces: bool, share: float = 1.0) -> float:
    """DMA time of a rank for all but its own share; a reduction reads twice."""
    slower = fabric.timings.dma.compute_share if reduces else 1.0
    return nbytes * _others(fabric.group.ranks) / (fabric.group.rate * share * slower)


def _ring(nbytes: float, fabric: Fabric, reduces: bool) -> Steps:
    group = fabric.group
    link = nbytes * _others(group.chips) / group.egress if group.chips > 1 else 0.0
    return Steps(
        latency_ns=(group.ranks - 1) * fabric.hop_ns,
        wire_ns=max(link, _dma_ns(nbytes, fabric, reduces)),
    )


def _kangaring(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """Two ranks at each position of the ring, and less HBM traffic."""
    group = fabric.group
    if group.chips == 1 or not group.is_complete or group.ranks > MOST_KANGARING_RANKS:
        return None
    shares = fabric.timings.collectives
    share = shares.kangaring_scatter_share if reduces else shares.kangaring_gather_share
    return Steps(
        latency_ns=group.ranks / 2 * fabric.hop_ns,
        wire_ns=max(
            nbytes * _others(group.chips) / group.egress, _dma_ns(nbytes, fabric, reduces) * share
        ),
    )


def _doubling(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """Recursive doubling or halving: one link at a time, some steps over several hops."""
    group = fabric.group
    if group.ranks & (group.ranks - 1) or not group.is_meshed:
        return None
    link = nbytes * _others(group.chips) / group.link if group.chips > 1 else 0.0
    return Steps(
        latency_ns=math.log2(group.ranks) * fabric.hop_ns,
        wire_ns=max(link * fabric.calibration.doubling_excess, _dma_ns(nbytes, fabric, reduces)),
    )


def _mesh(nbytes: float, fabric: Fabric, reduces: bool) -> Steps | None:
    """Everybody to everybody: between chips, then within them."""
    group = fabric.group
    if group.chips > MOST_MESH_CHIPS or not group.is_meshed:
        return None
    link = 0.0
    if group.chips > 1:
        link = nbytes * _others(group.chips) * group.hops / group.egress
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
        link = per_chip * _others(group.chips) * group.hops / group.egress
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
        wire_ns=passes * share * nbytes * _others(fabric.instances) / fabric.network,
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
    """One ring over the ranks of all instances, in lock step."""
    timings, ranks = fabric.timings.collectives, fabric.group.ranks * fabric.instances
    every = replace(fabric, group=replace(fabric.group, ranks=ranks))
    on_chips = Steps(wire_ns=sum(_dma_ns(nbytes, every, reduces) for reduces in phases))
    sent = Steps(
        latency_ns=len(phases) * (ranks - 1) * 2 * timings.host_hop_ns / timings.pipeline_stages,
        wire_ns=len(phases) * nbytes * _others(ranks) / fabric.network,
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


def _links(machine: Machine, chip: int, others: set[int]) -> list[float]:
    """Bytes/ns, one way, of the links from a chip to `others`; a switch has one port per axis."""
    topology = machine.topology
    here = topology.coords(chip)
    bandwidths: list[float] = []
    ports: set[str] = set()
    for neighbour in topology.neighbours(chip):
        if neighbour not in others:
            continue
        there = topology.coords(neighbour)
        axis = next(axis for axis, a, b in zip(topology.axes, here, there, strict=True) if a != b)
        if axis.wiring is Wiring.SWITCH and axis.name in ports:
            continue
        ports.add(axis.name)
        bandwidths.append(axis.link_bandwidth / GIGA / LINK_DIRECTIONS)
    return bandwidths


def locate(
    machine: Machine,
    cores: Sequence[int],
    *,
    groups_per_chip: int | None = None,
    calibration: Calibration = CALIBRATION,
) -> Group:
    """The group of some cores of a machine.

    `groups_per_chip` groups share a chip's links at once; None: as many as its other cores make.
    TopologyError: no such core.
    """
    chips = [machine.core(core).chip for core in cores]
    distinct = sorted(set(chips))
    first = distinct[0]
    per_chip = max(1, len(cores) // len(distinct))
    others = set(distinct) - {first}
    distances = [machine.topology.distance(first, other) for other in others]
    hops = sum(distances) / len(distances) if distances else 0.0
    links = _links(machine, first, others)
    if others and not links:
        # No link of its own: it goes over those of other chips, each hop of which is used.
        every = _links(machine, first, set(range(machine.instance.chips)))
        links = [bandwidth / max(1, min(distances)) for bandwidth in every]
    sharing = groups_per_chip or max(1, machine.cores_per_chip // per_chip)
    dma = machine.chip.core.dma.engine_bandwidth / GIGA
    return Group(
        ranks=len(cores),
        chips=len(distinct),
        is_complete=per_chip == machine.cores_per_chip,
        is_meshed=_is_meshed(machine, len(distinct)),
        hops=hops,
        egress=sum(links) / sharing if links else math.inf,
        link=max(links) / sharing if links else math.inf,
        rate=calibration.collective_engines * dma * machine.lnc,
        sharing=sharing,
    )


def _is_meshed(machine: Machine, chips: int) -> bool:
    switched = all(axis.wiring is Wiring.SWITCH for axis in machine.topology.axes)
    return switched or chips in (1, machine.topology.chips)


def fabric_of(
    machine: Machine,
    ranks: Sequence[int],
    *,
    groups_per_chip: int | None = None,
    in_program: bool = False,
    calibration: Calibration = CALIBRATION,
) -> Fabric:
    """The fabric of one replica group; rank i is core i, further instances follow the first."""
    cores = machine.core_count
    instances = len({rank // cores for rank in ranks})
    inside = sorted({rank % cores for rank in ranks})
    group = locate(machine, inside, groups_per_chip=groups_per_chip, calibration=calibration)
    # EFA adapters belong to chips.
    share = group.chips / machine.topology.chips / group.sharing
    return Fabric(
        group=group,
        timings=TIMINGS[machine.chip.core.version],
        calibration=calibration,
        in_program=in_program,
        instances=instances,
        network=share * machine.instance.network_bandwidth / GIGA,
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
    """How long a collective takes, without a program.

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
