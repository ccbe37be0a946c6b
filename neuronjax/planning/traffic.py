"""What cores send to each other, by axis of the mesh, and over which links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.machine.machine import Machine
from neuronjax.machine.topology import Wiring

CORES = "core"
"""The axis of a mesh that nobody described."""

JOINT = "+"
"""What stands between the axes of groups that span several."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one core sends in a step to cores that differ from it along some axes of the mesh."""

    axes: str
    """Joined by ``+``."""
    cores: int
    """Cores of a group."""
    first_group: tuple[int, ...]
    """The ranks that a group has; rank i runs on core i."""
    nbytes: float
    links: str
    """What lies between them, slowest last."""


def traffic_of(
    sent: Mapping[str, float], mesh: Mapping[str, int], machine: Machine
) -> tuple[Traffic, ...]:
    """The traffic along axes of several cores and by all that was sent, bytes by joined axes."""
    single = [axis for axis, size in mesh.items() if size > 1]
    joint = [axes for axes in sent if axes not in single]
    return tuple(_describe(axes, mesh, sent.get(axes, 0.0), machine) for axes in (*single, *joint))


def _describe(axes: str, mesh: Mapping[str, int], nbytes: float, machine: Machine) -> Traffic:
    names = axes.split(JOINT)
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    group = ids[tuple(slice(None) if axis in names else 0 for axis in mesh)].ravel()
    ranks = tuple(map(int, group))
    return Traffic(
        axes=axes,
        cores=len(ranks),
        first_group=ranks,
        nbytes=nbytes,
        links=", ".join(links_between(machine, ranks)),
    )


def links_between(machine: Machine, cores: Sequence[int]) -> Iterator[str]:
    """The kinds of links within a group of cores, those of several machines counted on."""
    instances = {core // machine.core_count for core in cores}
    chips = sorted({core % machine.core_count // machine.cores_per_chip for core in cores})
    inside = machine.cores_per_chip > 1 and len(cores) > len(chips) * len(instances)
    if inside:
        yield f"inside {_count(len(chips) * len(instances), 'chip')}"
    places = np.array([machine.topology.coords(chip) for chip in chips]).reshape(len(chips), -1)
    for number, axis in enumerate(machine.topology.axes):
        positions = len(np.unique(places[:, number]))
        if positions > 1:
            network = "between hosts" if axis.between_hosts else "NeuronLink"
            wiring = "line" if positions < axis.size else axis.wiring.value
            kind = wiring if axis.wiring is not Wiring.SWITCH else axis.wiring.value
            yield (
                f"{network} {axis.name} ({kind} of {positions}, "
                f"{axis.link_bandwidth / 1e9:g} GB/s a link)"
            )
    if len(instances) > 1:
        bandwidth = machine.instance.network_bandwidth / 1e9
        yield f"EFA between {len(instances)} instances ({bandwidth:g} GB/s each)"


def _count(count: int, noun: str) -> str:
    return f"a {noun}" if count == 1 else f"each of {count} {noun}s"
