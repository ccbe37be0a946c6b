"""Devices and their memories, as JAX sees logical cores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronjax.errors import VisibleCoresError
from neuronjax.machine.machine import LogicalCore, Machine
from neuronjax.options import Options

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")
"""HBM first: it is the default memory of every device."""

Attribute = int | str | tuple[int, ...]


@dataclass(eq=False)
class Memory:
    """A memory space of a device."""

    id: int
    kind: str
    device: Device

    def __str__(self) -> str:
        return f"NeuronMemory(id={self.id}, kind={self.kind}, device={self.device.id})"


@dataclass(eq=False)
class Device:
    """A logical NeuronCore that some process may use; ``id`` counts those of all processes."""

    id: int
    core: LogicalCore
    machine: Machine
    process_index: int = 0
    local_id: int | None = None
    """Number among the devices of its process; None: the ``id``."""
    slice_index: int | None = None
    """Number of its machine among several of a topology; None where nobody asked for several:
    ``jax.make_mesh`` refuses devices of different slices."""
    memories: tuple[Memory, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.local_id is None:
            self.local_id = self.id
        self.memories = tuple(
            Memory(self.id * len(MEMORY_KINDS) + index, kind, self)
            for index, kind in enumerate(MEMORY_KINDS)
        )

    @property
    def kind(self) -> str:
        return self.core.kind

    @property
    def label(self) -> str:
        """The device's name in the memory table of the Neuron runtime."""
        return f"ND {self.core.chip}:NC {self.core.id}"

    def memory(self, kind: str) -> Memory:
        return self.memories[MEMORY_KINDS.index(kind)]

    def attributes(self) -> dict[str, Attribute]:
        """The attributes that PJRT reports for the device."""
        core = self.core
        number = {} if self.slice_index is None else {"slice_index": self.slice_index}
        return {
            **number,
            "coords": core.coords,
            "core_on_chip": core.core_on_chip,
            "chip": core.chip,
            "core": core.id,
            "instance": core.instance_index,
            "hbm_bytes": core.hbm_bytes,
            "hbm_stack": core.hbm_stack,
            "target": self.machine.target,
            "lnc": self.machine.lnc,
        }

    def __str__(self) -> str:
        return f"NeuronDevice(id={self.id})"


def devices_of(machine: Machine, cores_by_process: Sequence[Sequence[LogicalCore]]) -> list[Device]:
    """The devices of all processes, those of the first process first."""
    ids = itertools.count()
    return [
        Device(next(ids), core, machine, process, local)
        for process, cores in enumerate(cores_by_process)
        for local, core in enumerate(cores)
    ]


def visible_cores(
    machine: Machine, options: Options, cores: Sequence[LogicalCore]
) -> Sequence[LogicalCore]:
    """The ``cores`` that ``options`` let a process see, in their order; counted from 0.

    Raises:
      VisibleCoresError: the options name cores that do not exist.
    """
    have = f"{machine} has logical cores 0-{len(cores) - 1}"
    if len(cores) < machine.core_count:
        have = f"this process has logical cores 0-{len(cores) - 1} of {machine}"
    if options.visible_cores is not None:
        missing = [core for core in options.visible_cores if core >= len(cores)]
        if missing:
            raise VisibleCoresError(
                f"NEURON_RT_VISIBLE_CORES asks for core {missing[0]}, but {have}. List only these, "
                "or choose a larger machine with NEURONJAX_TARGET."
            )
        cores = tuple(cores[core] for core in options.visible_cores)
    if options.num_cores is not None:
        if options.num_cores > len(cores):
            count = (
                f"NEURON_RT_NUM_CORES={options.num_cores}"
                if options.process_devices is None
                else f"the {options.num_cores} cores of NEURON_PJRT_PROCESSES_NUM_DEVICES"
            )
            raise VisibleCoresError(
                f"{count} are more than the {len(cores)} available cores; {have}."
            )
        cores = cores[: options.num_cores]
    return cores
