"""The places of a collective's ranks, and what the links and engines between them carry."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.machine.machine import Machine
from neuronjax.machine.timings import TIMINGS, Timings
from neuronjax.machine.topology import Axis, Topology, Wiring
from neuronjax.timing.calibration import CALIBRATION, Calibration

GIGA = 1e9

LINK_DIRECTIONS = 2
"""Printed link bandwidths count both directions: hw/trn3-arch says so, the others do not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The places of one replica group's ranks within an instance. Bandwidths are bytes/ns."""

    ranks: int
    chips: int
    #: Whether the group has all cores of its chips.
    is_complete: bool
    #: Whether each of its chips can write to each other one at once: over links of the group alone,
    #: which has all chips of the topology, or a switch between them, or one chip; or over others'.
    is_meshed: bool
    #: Mean links between two of its chips.
    hops: float
    #: What a chip can send over all its links to others of the group, and over one.
    egress: float
    link: float
    #: What a chip can send over all its links while data goes round a ring of the group's chips.
    ring: float
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
        """The latency of one step of an algorithm, in ns."""
        return self.timings.collectives.hop_ns


def others_share(count: int) -> float:
    """The share that does not come from oneself."""
    return (count - 1) / count


def _links(machine: Machine, chip: int, others: set[int]) -> list[float]:
    """Bytes/ns, one way, of the links from a chip along the axes on which it has neighbours among
    `others`: round a ring data goes both ways. A switch has one port per axis."""
    topology = machine.topology
    here = topology.coords(chip)

    def axis_to(neighbour: int) -> Axis:
        there = topology.coords(neighbour)
        return next(axis for axis, a, b in zip(topology.axes, here, there, strict=True) if a != b)

    neighbours = topology.neighbours(chip)
    used = {axis_to(neighbour).name for neighbour in neighbours if neighbour in others}
    bandwidths: list[float] = []
    ports: set[str] = set()
    for neighbour in neighbours:
        axis = axis_to(neighbour)
        is_round = axis.wiring is Wiring.RING and axis.name in used
        if neighbour not in others and not is_round:
            continue
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
    links = _links(machine, first, others)
    if others and not links:
        # No link of its own: it goes over those of other chips, each hop of which is used.
        every = _links(machine, first, set(range(machine.instance.chips)))
        nearest = min(machine.topology.distance(first, other) for other in others)
        links = [bandwidth / max(1, nearest) for bandwidth in every]
    sharing = groups_per_chip or max(1, machine.cores_per_chip // per_chip)
    dma = machine.chip.core.dma.engine_bandwidth / GIGA
    return Group(
        ranks=len(cores),
        chips=len(distinct),
        is_complete=per_chip == machine.cores_per_chip,
        is_meshed=_is_meshed(machine, len(distinct)),
        hops=_mean_hops(machine.topology, tuple(distinct)),
        egress=sum(links) / sharing if links else math.inf,
        ring=_ring_bandwidth(machine.topology, distinct, sum(links)) / sharing,
        link=max(links) / sharing if links else math.inf,
        rate=calibration.collective_engines * dma * machine.lnc,
        sharing=sharing,
    )


@functools.lru_cache(maxsize=256)
def _mean_hops(topology: Topology, chips: tuple[int, ...]) -> float:
    """Mean links between two of some chips."""
    pairs = [topology.distance(a, b) for a, b in itertools.combinations(chips, 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


def _ring_bandwidth(topology: Topology, chips: Sequence[int], every: float) -> float:
    """Bytes/ns that a chip sends round a ring, of `every` that its links send.

    On a torus rings share no link and take all. Behind switches a ring for each axis follows
    another, and the slowest axis decides: a chip has a port of its own for each.
    """
    if len(chips) == 1:
        return math.inf
    coords = [topology.coords(chip) for chip in chips]
    times = [
        others_share(len({place[number] for place in coords}))
        / (axis.link_bandwidth / GIGA / LINK_DIRECTIONS)
        for number, axis in enumerate(topology.axes)
        if axis.wiring is Wiring.SWITCH
    ]
    slowest = max(times, default=0.0)
    return min(every, others_share(len(chips)) / slowest) if slowest else every


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
