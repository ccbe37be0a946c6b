"""From parameter paths to shardings: models name array axes, and this file maps them to mesh axes.

Mesh axes: `stage` (stacked blocks), `data` (rows of the batch), `fsdp` (rows too, and the weights
between uses), `expert` (rows too, and the experts), `context` (positions of each row), `model`
(heads, feed-forward width, vocabulary) and `kv_replica` (as `model`, but for keys and values: cores
along it hold the same heads of those). A mesh need not have them all.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.errors import ShardingError

# (regular expression that matches a whole parameter path, names of that array's axes)
AxisTable = Sequence[tuple[str, tuple[str, ...]]]
# name of an array axis -> mesh axes it is split over; axes not named here are not split
AxisRules = Mapping[str, tuple[str, ...]]

MESH_AXES = ("stage", "data", "fsdp", "expert", "context", "model", "kv_replica")
FULLY_SHARDED = "fsdp"
"""The mesh axis over which weights are split between uses."""

BATCH_AXES = ("data", "fsdp", "expert")  # mesh axes that split the rows of a batch
TENSOR_AXES = ("model", "kv_replica")  # mesh axes of tensor parallelism

RULES: AxisRules = {
    "vocab": TENSOR_AXES,
    "heads": TENSOR_AXES,
    "kv_heads": ("model",),
    "hidden_dim": TENSOR_AXES,
    "experts": ("expert",),
    "dim": ("fsdp",),
    "layers": ("stage",),
}


def axis_names(path: str, table: AxisTable) -> tuple[str, ...]:
    """The axis names of the parameter at `path`: the first row that matches.

    A path such as `blocks.*.mlp.up.kernel`, of the stacked parameters of all blocks, has the axis
    `layers` first. Raises ShardingError if no row matches.
    """
    if ".*." in path:
        return ("layers", *axis_names(path.replace(".*.", ".0."), table))
    for pattern, names in table:
        if re.fullmatch(pattern, path):
            return names
    raise ShardingError(
        f"no row of the axis table matches the parameter {path!r}; its patterns are "
        f"{[pattern for pattern, _ in table]}. Add a row for it."
    )


def partition_spec(
    path: str, table: AxisTable, rules: AxisRules, mesh_axes: Sequence[str] = MESH_AXES
) -> PartitionSpec:
    """The partition of the parameter at `path` over a mesh of these axes.

    Raises ShardingError if the table does not know it.
    """
    names = axis_names(path, table)
    return make_spec([axis for axis in rules.get(n, ()) if axis in mesh_axes] for n in names)


def split_axes(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of every array axis."""
    return tuple((part,) if isinstance(part, str) else tuple(part or ()) for part in spec)


def make_spec(axes: Iterable[Sequence[str]]) -> PartitionSpec:
    """The inverse: of the mesh axes of every array axis."""
    return PartitionSpec(
        *(tuple(part) if len(part) > 1 else next(iter(part), None) for part in axes)
    )


def parameter_shardings(
    mesh: Mesh, parameters: Mapping[str, Any], table: AxisTable, rules: AxisRules = RULES
) -> dict[str, NamedSharding]:
    """The sharding of every parameter, given as anything with a shape.

    Raises ShardingError if an axis does not divide evenly.
    """
    return {
        path: NamedSharding(mesh, _checked_spec(mesh, path, parameter.shape, table, rules))
        for path, parameter in parameters.items()
    }


def _checked_spec(
    mesh: Mesh, path: str, shape: Sequence[int], table: AxisTable, rules: AxisRules
) -> PartitionSpec:
    spec = partition_spec(path, table, rules, mesh.axis_names)
    names = axis_names(path, table)
    if len(names) != len(shape):
        raise ShardingError(
            f"the axis table names {len(names)} axes {list(names)} for {path}, which has the "
            f"shape {list(shape)}. Correct its row."
        )
    for name, size, axes in zip(names, shape, split_axes(spec), strict=True):
        parts = math.prod(mesh.shape[axis] for axis in axes)
        if size % parts:
            over = "·".join(axes)
            raise ShardingError(
                f"the mesh splits {name} over {over}={parts}, which does not divide "
                f"{name}={size} of {path} {list(shape)}. Choose a mesh whose {over} divides {size}."
            )
    return spec


def batch_spec(mesh_axes: Sequence[str], rank: int = 2) -> PartitionSpec:
    """How an array of `rank` axes, rows first and positions second, is split over such a mesh."""
    rows = tuple(axis for axis in BATCH_AXES if axis in mesh_axes)
    positions = "context" if "context" in mesh_axes and rank > 1 else None
    return PartitionSpec(rows or None, *([positions] if rank > 1 else []), *[None] * (rank - 2))


def batch_shards(mesh: Mesh) -> int:
    """The number of parts into which the rows of a batch are split."""
    size = 1
    for axis in BATCH_AXES:
        size *= mesh.shape.get(axis, 1)
    return size
