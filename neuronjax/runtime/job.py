"""The job that a client takes part in: the devices of all processes, and links to the processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import neuronjax
from neuronjax.errors import ConfigurationError
from neuronjax.legalize.policy import Policy
from neuronjax.machine.hosts import cores_of_process
from neuronjax.machine.machine import LogicalCore, Machine
from neuronjax.options import Options
from neuronjax.processes.links import Links
from neuronjax.processes.roster import Description, Process, join
from neuronjax.runtime.device import Device, devices_of, visible_cores

_COUNTS = "NEURON_PJRT_PROCESSES_NUM_DEVICES"


@dataclass(frozen=True)
class Job:
    """All devices, and which of them this process has; ``links`` if there are other processes."""

    index: int
    devices: Sequence[Device]
    links: Links | None

    @property
    def local_devices(self) -> list[Device]:
        """The devices of this process, in the order of their ids."""
        return [device for device in self.devices if device.process_index == self.index]

    def local(self, ids: Iterable[int]) -> list[int]:
        """The devices among ``ids`` that belong to this process, in their order."""
        return [id for id in ids if self.devices[id].process_index == self.index]

    def owners(self, ids: Iterable[int]) -> list[int]:
        """The process of each device."""
        return [self.devices[id].process_index for id in ids]

    @property
    def has_failed(self) -> bool:
        """Whether the job has failed, so that its processes can no longer cooperate."""
        return self.links is not None and self.links.failure is not None

    def close(self) -> None:
        """Tells the other processes that this one ends."""
        if self.links is not None:
            self.links.close()


def take_part(machine: Machine, policy: Policy, options: Options, process: Process | None) -> Job:
    """Joins the job of this process, alone or with those that ``process`` describes.

    Raises:
      VisibleCoresError, ConfigurationError: the options name cores that the process lacks.
      TopologyError: the machine cannot be divided among that many processes.
      PeerError: another process is missing, or was started for another job.
    """
    index, count = (process.index, process.count) if process else (0, 1)
    cores = visible_cores(machine, _own(options, index, count), _cores(machine, index, count))
    if process is None:
        return Job(0, devices_of(machine, [cores]), None)
    if options.executor == "engine":
        raise ConfigurationError(
            f"NEURONJAX_EXECUTOR=engine emulates the engines of all cores in one process, and this "
            f"is one of {count}. Run the script in one process (NEURONJAX_TARGET=trn2-ultraserver "
            "has four hosts), or use NEURONJAX_EXECUTOR=host."
        )
    first = _cores(machine, index, count)[0].id
    description = Description(
        agreed={
            "version of neuronjax": neuronjax.__version__,
            "version of jaxlib": version("jaxlib"),
            "target": machine.target,
            "logical core size": str(machine.lnc),
            "executor": options.executor,
            "options of numerics and legality": policy.digest(),
            _COUNTS: str(options.process_devices),
        },
        cores=[core.id - first for core in cores],
    )
    roster = join(process, description)
    cores_by_process = [
        [_cores(machine, number, count)[core] for core in description.cores]
        for number, description in enumerate(roster.descriptions)
    ]
    return Job(index, devices_of(machine, cores_by_process), roster.links)


def _cores(machine: Machine, index: int, count: int) -> Sequence[LogicalCore]:
    return cores_of_process(machine, index, count)


def _own(options: Options, index: int, count: int) -> Options:
    """The options of this process; a list of numbers of cores has an entry per process."""
    counts = options.process_devices
    if counts is None:
        return options
    if len(counts) != count:
        raise ConfigurationError(
            f"{_COUNTS} lists the devices of {len(counts)} processes, but there are {count}. "
            "List one number for each process, and call jax.distributed.initialize in every "
            "process."
        )
    return replace(options, num_cores=counts[index])
