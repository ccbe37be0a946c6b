"""`neuronjax.make_mesh`: a JAX mesh whose inner axes lie on the closest cores."""

import math
import warnings
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from neuronjax.errors import TopologyError
from neuronjax.machine.axes import Axes, mesh_axes
from neuronjax.machine.machine import Machine
from neuronjax.machine.placement import CoreIds, arrange_cores, unconnected_groups


def make_mesh(
    axes: Axes,
    *,
    devices: Sequence[jax.Device] | None = None,
    axis_types: tuple[AxisType, ...] | None = None,
    machine: Machine | None = None,
) -> Mesh:
    """A `jax.sharding.Mesh` that follows the wiring of the machine.

    Args:
      axes: size of each axis by name, or a string such as "data=4,model=2"; the last axis should
        communicate most: it gets the closest cores.
      devices: devices to choose from; default `jax.devices()`. A mesh that needs fewer takes the
        lowest-numbered block. Devices of several machines divide the first axis.
      axis_types: as for `jax.sharding.Mesh`; default Auto.
      machine: the machine whose cores the devices are, by their `id`. By default it follows from
        the attributes `target`, `lnc`, `chip` and `core_on_chip` that "neuron" devices have.

    Warns (UserWarning) when the cores along some axis are not connected among themselves: such
    meshes may fail on the real platform.

    Raises TopologyError: bad sizes, too few devices, an unsupported number of cores, or devices of
    another platform without `machine`.
    """
    sizes = mesh_axes(axes)
    devices = list(jax.devices() if devices is None else devices)
    machine, cores = machine_and_cores(devices, machine)
    by_core = dict(zip(cores, devices, strict=True))
    ids, parts = _arrange(machine, sizes, list(by_core))
    unconnected: dict[str, tuple[int, ...]] = {}
    for part in parts:
        unconnected |= unconnected_groups(machine, dict(zip(sizes, part.shape, strict=True)), part)
    for name, group in unconnected.items():
        warnings.warn(_unconnected_message(machine, name, group), UserWarning, stacklevel=2)
    placed = np.empty(ids.shape, dtype=object)
    for index, core in np.ndenumerate(ids):
        placed[index] = by_core[int(core)]
    return Mesh(placed, tuple(sizes), axis_types=axis_types)


def _arrange(
    machine: Machine, sizes: Mapping[str, int], cores: Sequence[int]
) -> tuple[CoreIds, list[CoreIds]]:
    """The cores of a mesh, and its parts on the machines over which the first axis is divided.

    Ids beyond a machine's are on further machines of its kind.
    """
    machines: dict[int, list[int]] = {}
    for core in cores:
        machines.setdefault(core // machine.core_count, []).append(core % machine.core_count)
    if not machines:
        ids = arrange_cores(machine, sizes, cores)
        return ids, [ids]
    needed = math.prod(size for size in sizes.values() if isinstance(size, int))
    count = min(len(machines), -(-needed // max(map(len, machines.values()))))
    first = next(iter(sizes), "")
    if count > 1 and sizes[first] % count:
        raise TopologyError(
            f"the mesh lies on {count} machines {machine}, and axis {first!r} of size "
            f"{sizes[first]} does not divide over them; put an axis first that does."
        )
    inside = {**sizes, first: sizes[first] // count} if count > 1 else sizes
    chosen = sorted(machines)[:count]
    parts = [arrange_cores(machine, inside, machines[number]) for number in chosen]
    shifted = [
        part + number * machine.core_count for part, number in zip(parts, chosen, strict=True)
    ]
    return np.concatenate(shifted), parts


def machine_and_cores(
    devices: Sequence[jax.Device], machine: Machine | None
) -> tuple[Machine, list[int]]:
    """The machine that devices are of, and the core of each. Numbers beyond a machine's cores are
    those of further machines of its kind. Devices of any platform may stand for the cores of a
    given `machine`, by their `id`.

    Raises TopologyError: there are none, or they are not of one neuron machine.
    """
    if machine is not None:
        return machine, [device.id for device in devices]
    if not devices:
        raise TopologyError("a mesh was given no devices; leave `devices` out to use all of them")
    described = {(getattr(d, "target", None), getattr(d, "lnc", None)) for d in devices}
    target, lnc = described.pop()
    if described or target is None or lnc is None:
        platforms = ", ".join(sorted({device.platform for device in devices}))
        raise TopologyError(
            f"a mesh needs the devices of one neuron machine; got {len(devices)} of platform "
            f"{platforms}. Set JAX_PLATFORMS=neuron, or pass machine=Machine.create(target)."
        )
    machine = Machine.create(target, lnc)
    return machine, [d.chip * machine.cores_per_chip + d.core_on_chip for d in devices]


def _unconnected_message(machine: Machine, name: str, group: tuple[int, ...]) -> str:
    chips = sorted({core // machine.cores_per_chip for core in group})
    return (
        f"mesh axis {name!r} joins cores {list(group)} on chips {chips} of {machine}, which are "
        "not all linked among themselves. Mesh configurations that use non-connected cores may "
        "crash on the real platform. Reorder the axes or choose sizes that divide the topology: "
        f"{machine.topology}."
    )
