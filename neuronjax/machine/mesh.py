"""`neuronjax.make_mesh`: a JAX mesh whose inner axes lie on the closest cores."""

import warnings
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from neuronjax.errors import TopologyError
from neuronjax.machine.axes import Axes, mesh_axes
from neuronjax.machine.machine import Machine
from neuronjax.machine.placement import arrange_cores, unconnected_groups


def make_mesh(
    axes: Axes,
    *,
    devices: Sequence[jax.Device] | None = None,
    axis_types: tuple[AxisType, ...] | None = None,
    machine: Machine | None = None,
) -> Mesh:
    """A `jax.sharding.Mesh` that follows the wiring of the machine.

    Args:
      axes: size of each axis by name, or a text as "data=4,model=2"; the last one communicates
        most and gets the closest cores.
      devices: devices to choose from; default `jax.devices()`. A mesh that needs fewer takes the
        lowest-numbered block.
      axis_types: as for `jax.sharding.Mesh`; default Auto.
      machine: what the devices are cores of, by their `id`. By default the devices say it by
        their attributes `target`, `lnc`, `chip` and `core_on_chip`, as those of "neuron" do.

    Warns (UserWarning) when the cores along some axis are not connected among themselves: such
    meshes may fail on the real platform.

    Raises TopologyError: bad sizes, too few devices, an unsupported number of cores, or devices of
    another platform without `machine`.
    """
    sizes = mesh_axes(axes)
    devices = list(jax.devices() if devices is None else devices)
    if machine is None:
        machine = _machine_of(devices)
        by_core = {d.chip * machine.cores_per_chip + d.core_on_chip: d for d in devices}
    else:
        by_core = {device.id: device for device in devices}
    ids = arrange_cores(machine, sizes, list(by_core))
    for name, group in unconnected_groups(machine, sizes, ids).items():
        warnings.warn(_unconnected_message(machine, name, group), UserWarning, stacklevel=2)
    placed = np.empty(ids.shape, dtype=object)
    for index, core in np.ndenumerate(ids):
        placed[index] = by_core[int(core)]
    return Mesh(placed, tuple(sizes), axis_types=axis_types)


def _machine_of(devices: Sequence[jax.Device]) -> Machine:
    if not devices:
        raise TopologyError(
            "make_mesh was given no devices; leave `devices` out to use all of them"
        )
    described = {(getattr(d, "target", None), getattr(d, "lnc", None)) for d in devices}
    target, lnc = described.pop()
    if described or target is None or lnc is None:
        platforms = ", ".join(sorted({device.platform for device in devices}))
        raise TopologyError(
            f"make_mesh needs the devices of one neuron machine; got {len(devices)} of platform "
            f"{platforms}. Set JAX_PLATFORMS=neuron, or pass machine=Machine.create(target)."
        )
    return Machine.create(target, lnc)


def _unconnected_message(machine: Machine, name: str, group: tuple[int, ...]) -> str:
    chips = sorted({core // machine.cores_per_chip for core in group})
    return (
        f"mesh axis {name!r} joins cores {list(group)} on chips {chips} of {machine}, which are "
        "not all linked among themselves. Mesh configurations that use non-connected cores may "
        "crash on the real platform. Reorder the axes or choose sizes that divide the topology: "
        f"{machine.topology}."
    )
