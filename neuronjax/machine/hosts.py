"""The cores of the processes of a job: every process has those of one or several hosts.

A process of the Neuron SDK has the chips of its instance. As many processes as a target has hosts
share one target: an UltraServer has four or more hosts, an instance has one. Twice as many
processes have two targets, connected by EFA; if there are fewer processes than hosts, every process
has several hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronjax.errors import TopologyError
from neuronjax.machine.machine import LogicalCore, Machine


def cores_of_process(machine: Machine, process: int, count: int) -> Sequence[LogicalCore]:
    """The cores of process number ``process`` of ``count``.

    Their ids, chips and instances are numbered consecutively over all targets; coordinates are
    those in their target's topology.

    TopologyError: the target's hosts cannot be divided evenly among that many processes.
    """
    hosts = machine.instance.hosts
    if count % hosts and hosts % count:
        raise TopologyError(
            f"{count} processes cannot share the {hosts} hosts of {machine}: start as many as "
            f"divide {hosts}, {hosts}, or a multiple of it (several {machine.target}), or choose "
            "another NEURONJAX_TARGET."
        )
    if count < hosts:
        return _of_hosts(machine, range(process * hosts // count, (process + 1) * hosts // count))
    target, host = divmod(process, hosts)
    return [_on_target(core, machine, target) for core in _of_hosts(machine, range(host, host + 1))]


def core_of(machine: Machine, id: int) -> LogicalCore:
    """A core by its id; ids are numbered consecutively over all targets."""
    target, core = divmod(id, machine.core_count)
    return _on_target(machine.core(core), machine, target)


def _of_hosts(machine: Machine, hosts: range) -> list[LogicalCore]:
    return [core for core in machine.logical_cores if core.instance_index in hosts]


def _on_target(core: LogicalCore, machine: Machine, target: int) -> LogicalCore:
    """The corresponding core of another target of the same kind."""
    first = target * machine.core_count
    return replace(
        core,
        id=core.id + first,
        chip=core.chip + target * machine.instance.chips,
        instance_index=core.instance_index + target * machine.instance.hosts,
        physical_cores=tuple(
            core_number + first * machine.lnc for core_number in core.physical_cores
        ),
    )
