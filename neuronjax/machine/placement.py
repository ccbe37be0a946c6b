"""The placement of a mesh on a machine: the part of `neuronjax.make_mesh` without JAX.

The machine is a grid: the topology's axes and, innermost, the cores of a chip. A mesh is laid into
a box of that grid by splitting the sizes of mesh axes and box sides into common factors, both from
the innermost outwards, so that the last mesh axis takes the cores of one chip first, then a row,
then a plane, then other instances. Within one mesh axis the factors are counted in reflected order
(a Gray code), and where several mesh axes share one side of the box the inner ones are reflected
too: stepping along an axis then moves over one link wherever the wiring allows it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuronjax.errors import TopologyError
from neuronjax.machine.axes import Axes, describe, mesh_axes
from neuronjax.machine.group_sizes import GROUP_SIZES
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine

CoreIds = npt.NDArray[np.int64]


def arrange_cores(machine: Machine, axes: Axes, cores: Sequence[int] | None = None) -> CoreIds:
    """Core ids for a mesh of shape `axes`, with neighbours in the mesh on neighbouring cores.

    `axes` maps axis names to sizes, the axis that communicates most last. `cores` are the ids to
    choose from (default: all of the machine); if the mesh needs fewer, it takes the lowest-numbered
    block. Returns int64 of shape `tuple(axes.values())`; no id occurs twice.

    TopologyError: a size is not a positive integer, the mesh needs more cores than there are, or
    the platform supports no group of that many cores.
    """
    sizes = mesh_axes(axes)
    available = _check_cores(machine, cores)
    _check_capacity(machine, sizes, len(available))
    _check_groups(machine, sizes)

    shape = tuple(sizes.values())
    grid = (*machine.topology.shape, machine.cores_per_chip)
    start, extent = _bounding_box(available, grid)
    if math.prod(extent) == len(available):
        for sides in _boxes(math.prod(shape), extent):
            factors = _common_factors(shape, sides)
            if factors is not None:
                return _lay(shape, factors, start, grid)
    return _along_path(machine, available, shape)


def unconnected_groups(
    machine: Machine, axes: Mapping[str, int], ids: CoreIds
) -> dict[str, tuple[int, ...]]:
    """The mesh axes along which some group of cores is not connected by its own links.

    `ids` is a mesh from `arrange_cores` or any other of shape `tuple(axes.values())`. Returns, by
    axis name, the first such group; empty if every group is connected.
    """
    unconnected: dict[str, tuple[int, ...]] = {}
    for position, name in enumerate(axes):
        groups = np.moveaxis(ids, position, -1).reshape(-1, ids.shape[position])
        chips = np.sort(groups // machine.cores_per_chip, axis=-1)
        _, first = np.unique(chips, axis=0, return_index=True)
        for index in sorted(first):
            if not is_connected(machine, {int(chip) for chip in chips[index]}):
                unconnected[name] = tuple(int(core) for core in groups[index])
                break
    return unconnected


def is_connected(machine: Machine, chips: set[int]) -> bool:
    """Whether these chips (at least one) are connected by links among themselves."""
    unseen = set(chips)
    frontier = [unseen.pop()]
    while frontier and unseen:
        reached = unseen.intersection(machine.topology.neighbours(frontier.pop()))
        unseen -= reached
        frontier.extend(reached)
    return not unseen


def _check_cores(machine: Machine, cores: Sequence[int] | None) -> list[int]:
    if cores is None:
        return list(range(machine.core_count))
    if len(set(cores)) != len(cores):
        raise TopologyError(f"the same core is given twice: {sorted(cores)}")
    return sorted(machine.core(core).id for core in cores)


def _check_capacity(machine: Machine, axes: Mapping[str, int], available: int) -> None:
    needed = math.prod(axes.values())
    if needed <= available:
        return
    remedies = ["make the mesh smaller"]
    if available < machine.core_count:
        remedies.append(f"use more of the {machine.core_count} cores")
    remedies += [
        f"set NEURON_LOGICAL_NC_CONFIG={lnc} ({machine.instance.logical_cores(lnc)} cores)"
        for lnc in machine.chip.allowed_lncs
        if machine.core_count < needed <= machine.instance.logical_cores(lnc)
    ]
    larger = sorted(
        (instance.logical_cores(machine.lnc), instance.name)
        for instance in INSTANCES.values()
        if instance.chip is machine.chip
        and max(needed, machine.core_count + 1) <= instance.logical_cores(machine.lnc)
    )
    if larger:
        listed = ", ".join(f"{name} ({count} cores)" for count, name in larger)
        remedies.append(f"set NEURONJAX_TARGET to one of {listed}")
    raise TopologyError(
        f"mesh {describe(axes)} needs {needed} cores; {machine} offers {available}. "
        f"What helps: {'; '.join(remedies)}."
    )


def _check_groups(machine: Machine, axes: Mapping[str, int]) -> None:
    """Checks the sizes of the whole mesh and of the innermost axis, which has consecutive cores."""
    supported = GROUP_SIZES[machine.chip.name, machine.lnc]
    inner = next((name for name in reversed(tuple(axes)) if axes[name] > 1), None)
    groups = {f"mesh {describe(axes)}": math.prod(axes.values())}
    if inner is not None:
        groups[f"mesh axis {inner}={axes[inner]}"] = axes[inner]
    for what, size in groups.items():
        if not supported.allows(size):
            nearest = " or ".join(map(str, supported.nearest(size)))
            raise TopologyError(
                f"Unsupported topology: {what} makes a group of {size} cores on {machine}. "
                f"Supported number of Neuron Cores is {supported}; nearest: {nearest}."
            )


def _bounding_box(
    cores: Sequence[int], grid: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lowest corner and side lengths of the box around `cores`."""
    coords = np.array(np.unravel_index(np.asarray(cores), grid))
    low, high = coords.min(axis=1), coords.max(axis=1)
    return tuple(map(int, low)), tuple(map(int, high - low + 1))


def _boxes(volume: int, extent: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Side lengths of the boxes of `volume` inside `extent`, longest inner sides first."""
    if not extent:
        if volume == 1:
            yield ()
        return
    *outer, innermost = extent
    for side in range(min(innermost, volume), 0, -1):
        if volume % side == 0:
            for sides in _boxes(volume // side, tuple(outer)):
                yield (*sides, side)


@dataclass(frozen=True, slots=True)
class _Factor:
    """`size` positions along one side of the box that count along one mesh axis."""

    mesh_axis: int
    side: int
    size: int


def _common_factors(shape: tuple[int, ...], sides: tuple[int, ...]) -> list[_Factor] | None:
    """Common factors of `shape` and `sides`, innermost first; None if there are none."""
    factors = []
    left = list(sides)
    side = len(sides) - 1
    for mesh_axis in reversed(range(len(shape))):
        size = shape[mesh_axis]
        while size > 1:
            while left[side] == 1:
                side -= 1
            common = math.gcd(size, left[side])
            if common == 1:
                return None
            factors.append(_Factor(mesh_axis, side, common))
            size //= common
            left[side] //= common
    return factors


def _reflect(digit: CoreIds, size: int, outer: CoreIds) -> CoreIds:
    """Counts `digit` backwards wherever `outer` is odd."""
    return np.where(outer % 2 == 0, digit, size - 1 - digit)


def _lay(
    shape: tuple[int, ...], factors: list[_Factor], start: tuple[int, ...], grid: tuple[int, ...]
) -> CoreIds:
    core_side = len(grid) - 1  # cores of a chip have no order among them: never reflected
    remaining = list(np.indices(shape, dtype=np.int64))
    digits = []
    for factor in factors:
        quotient, digit = np.divmod(remaining[factor.mesh_axis], factor.size)
        reflects = factor.side != core_side
        digits.append(_reflect(digit, factor.size, quotient) if reflects else digit)
        remaining[factor.mesh_axis] = quotient

    position = [np.zeros(shape, dtype=np.int64) for _ in grid]
    for factor, digit in reversed(list(zip(factors, digits, strict=True))):
        outer = position[factor.side]
        if factor.side != core_side:
            digit = _reflect(digit, factor.size, outer)
        position[factor.side] = outer * factor.size + digit
    placed = [along + offset for along, offset in zip(position, start, strict=True)]
    return np.ravel_multi_index(placed, grid).astype(np.int64)


def _along_path(machine: Machine, available: Sequence[int], shape: tuple[int, ...]) -> CoreIds:
    """The cores met first on the path through all chips, in that order."""
    rank = {chip: index for index, chip in enumerate(machine.topology.path)}
    ordered = sorted(available, key=lambda core: (rank[core // machine.cores_per_chip], core))
    return np.array(ordered[: math.prod(shape)], dtype=np.int64).reshape(shape)
