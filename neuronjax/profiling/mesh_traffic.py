"""The traffic of a program's run over the links of the machine, and a picture of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neuronjax.errors import UnknownTargetError
from neuronjax.machine.machine import Machine
from neuronjax.machine.picture import Placement, machines_in_use, svg
from neuronjax.profiling.records import Collective, MachineFacts, ProgramProfile
from neuronjax.timing.fabric import LINK_DIRECTIONS
from neuronjax.timing.links import LinkTraffic
from neuronjax.timing.network import Op

MOST_CORES = 512
"""Cores of all machines that are drawn, together."""

_SIZES: Mapping[Op, Callable[[Collective], int]] = {
    Op.ALL_REDUCE: lambda collective: collective.input_size,
    Op.ALL_GATHER: lambda collective: collective.output_size,
    Op.REDUCE_SCATTER: lambda collective: collective.input_size,
    Op.ALL_TO_ALL: lambda collective: collective.input_size,
    Op.PERMUTE: lambda collective: collective.input_size,
}
"""Bytes of a collective as its algorithms count them."""


def traffic_of(program: ProgramProfile, machine: Machine) -> LinkTraffic:
    """The traffic of one run."""
    traffic = LinkTraffic()
    for collective in program.collectives:
        op = Op(collective.operation)
        groups = [[program.cores[rank] for rank in group] for group in collective.groups]
        traffic.add(op, _SIZES[op](collective) * collective.runs, groups, machine)
    return traffic


def described(program: ProgramProfile, facts: MachineFacts) -> dict[str, object] | None:
    """A picture of each machine, and the busiest link; None for machines that are not drawn."""
    try:
        machine = Machine.create(facts.target, facts.lnc)
    except UnknownTargetError:
        return None
    traffic = traffic_of(program, machine)
    placement = Placement(axes=dict(program.mesh), cores=program.cores, traffic=traffic.links)
    used = machines_in_use(machine, placement)
    if len(used) * machine.core_count > MOST_CORES or not used:
        return None
    busiest = max(traffic.links.items(), key=lambda item: item[1], default=None)
    share = 0.0
    if busiest is not None and program.total_ns:
        rate = machine.topology.link_bandwidth(*busiest[0]) / LINK_DIRECTIONS
        share = busiest[1] / 2 / (rate * program.total_ns * 1e-9)
    return {
        "svgs": [svg(machine, placement, number) for number in used],
        "axes": [f"{axis}={size}" for axis, size in program.mesh],
        "busiest": busiest and {"chips": busiest[0], "bytes": busiest[1], "share": share},
        "topology": str(machine.topology) if machine.topology.chips > 1 else "one chip",
    }
