"""The machine on which a program runs: a target with a logical-core configuration."""

from dataclasses import dataclass
from functools import cached_property

from neuronjax.errors import TopologyError
from neuronjax.machine.instances import InstanceSpec, find_instance
from neuronjax.machine.picture import svg
from neuronjax.machine.specs import ChipSpec
from neuronjax.machine.topology import Topology
from neuronjax.options import DEFAULT_TARGET


@dataclass(frozen=True, slots=True)
class LogicalCore:
    """A logical NeuronCore, which is a device for JAX.

    `id` counts over the whole machine, contiguous across chips, and so do `physical_cores`.
    `coords` are those of the chip in the machine's topology. `hbm_stack` counts within the chip.
    """

    id: int
    chip: int
    core_on_chip: int
    coords: tuple[int, ...]
    instance_index: int
    hbm_bytes: int
    hbm_stack: int
    kind: str
    physical_cores: tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """A target with its logical-core configuration. Construct it with `Machine.create`."""

    instance: InstanceSpec
    lnc: int

    @classmethod
    def create(cls, target: str = DEFAULT_TARGET, lnc: int | None = None) -> "Machine":
        """The machine called `target`; `lnc` None takes the chip's default.

        UnknownTargetError: no such target. LogicalCoreError: the chip does not support `lnc`.
        """
        instance = find_instance(target)
        return cls(instance, instance.resolve_lnc(lnc))

    @property
    def target(self) -> str:
        """Name of the instance or UltraServer."""
        return self.instance.name

    @property
    def chip(self) -> ChipSpec:
        """The record of its chips, which are all alike."""
        return self.instance.chip

    @property
    def topology(self) -> Topology:
        """How its chips are wired."""
        return self.instance.topology

    @property
    def device_kind(self) -> str:
        """PJRT device kind of every logical core, such as "NC_v3d"."""
        return self.chip.device_kinds[self.lnc]

    @property
    def cores_per_chip(self) -> int:
        """Logical cores of one chip."""
        return self.chip.logical_cores(self.lnc)

    @property
    def core_count(self) -> int:
        """Logical cores of the machine."""
        return self.instance.logical_cores(self.lnc)

    @property
    def core_hbm_bytes(self) -> int:
        """Device memory of one logical core in bytes."""
        return self.chip.logical_core_hbm_bytes(self.lnc)

    @cached_property
    def logical_cores(self) -> tuple[LogicalCore, ...]:
        """All logical cores in the order of their ids."""
        return tuple(
            core for chip in range(self.instance.chips) for core in self._cores_of_chip(chip)
        )

    def _cores_of_chip(self, chip: int) -> list[LogicalCore]:
        coords = self.topology.coords(chip)
        instance_index = chip // self.instance.chips_per_host
        first = chip * self.cores_per_chip
        return [
            LogicalCore(
                id=first + core,
                chip=chip,
                core_on_chip=core,
                coords=coords,
                instance_index=instance_index,
                hbm_bytes=self.core_hbm_bytes,
                hbm_stack=self.chip.hbm_stack(core * self.lnc),
                kind=self.device_kind,
                physical_cores=tuple(
                    (first + core) * self.lnc + physical for physical in range(self.lnc)
                ),
            )
            for core in range(self.cores_per_chip)
        ]

    def core(self, id: int) -> LogicalCore:
        """The logical core numbered `id`. TopologyError: no such core."""
        if not 0 <= id < self.core_count:
            raise TopologyError(
                f"logical core {id} does not exist: {self} has cores 0 to {self.core_count - 1}"
            )
        return self.logical_cores[id]

    def distance(self, a: int, b: int) -> int:
        """Chip-to-chip hops between two cores; 0 on one chip. TopologyError: no such core."""
        return self.topology.distance(self.core(a).chip, self.core(b).chip)

    def __str__(self) -> str:
        return f"{self.target} (LNC {self.lnc})"

    def _repr_html_(self) -> str:
        """The machine's chips, cores and links as a picture, as IPython asks for it."""
        memory = self.core_hbm_bytes / (1 << 30)
        return (
            f"<p>{self}: {self.instance.chips} x {self.chip.name}, {self.core_count} logical cores "
            f"with {memory:g} GiB each; {self.topology}</p>{svg(self)}"
        )
