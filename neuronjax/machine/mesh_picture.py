"""`neuronjax.visualize_mesh`: where a mesh lies on its machine, as a picture and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from neuronjax.display import Displayed
from neuronjax.machine.machine import Machine
from neuronjax.machine.mesh import machine_and_cores
from neuronjax.machine.picture import Placement, machines_in_use, svg


@dataclass(frozen=True, repr=False)
class MeshPicture(Displayed):
    """A mesh on its machines: a line for each chip with the coordinates of its cores; in a notebook
    the chips, their links, and each core in the colour of its place on the first axis."""

    machine: Machine
    axes: Mapping[str, int]
    """Sizes of the mesh by axis."""
    cores: tuple[int, ...]
    """Core of each device, in row-major order of the mesh; counted on over several machines."""

    def parts(self) -> tuple[str]:
        sizes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        by_chip: dict[int, list[str]] = {}
        coordinates = np.ndindex(*self.axes.values())
        for core, place in sorted(zip(self.cores, coordinates, strict=True)):
            chip = core // self.machine.cores_per_chip
            by_chip.setdefault(chip, []).append(f"{core}: ({', '.join(map(str, place))})")
        rows = (f"  chip {chip}: cores {', '.join(cores)}" for chip, cores in by_chip.items())
        count = len(machines_in_use(self.machine, self._placement))
        several = f"{count} machines " if count > 1 else ""
        return ("\n".join((f"mesh ({sizes}) on {several}{self.machine}", *rows)),)

    def _repr_html_(self) -> str:
        used = machines_in_use(self.machine, self._placement)
        return "".join(svg(self.machine, self._placement, number) for number in used)

    @property
    def _placement(self) -> Placement:
        return Placement(axes=self.axes, cores=self.cores)


def visualize_mesh(mesh: Mesh, *, machine: Machine | None = None) -> MeshPicture:
    """A picture of where the devices of a mesh lie on their machine, or on several of its kind.

    Print it, or make it the last value of a notebook cell; `jax.debug.visualize_array_sharding`
    shows which of these devices holds which part of an array.

    Args:
      mesh: of devices of platform "neuron".
      machine: as for `make_mesh`, if the devices are of another platform.

    Raises TopologyError: devices of another platform without `machine`.
    """
    machine, cores = machine_and_cores(list(mesh.devices.flat), machine)
    return MeshPicture(machine, dict(mesh.shape), tuple(cores))
