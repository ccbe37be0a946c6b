"""From parameter paths to shardings: the models know axes, only this knows mesh axes.

Mesh axes: `data` (rows of the batch), `fsdp` (rows too, and the weights between uses), `expert`
(rows too, and the experts), `context` (positions of each row), `model` (heads, feed-forward
width, vocabulary). A mesh need not have them all.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.errors import ShardingError

# (regular expression that matches a whole parameter path, names of that array's axes)
AxisTable = Sequence[tuple[str, tuple[str, ...]]]
# name of an array axis -> mesh axis it is split over; axes not named here are not split
AxisRules = Mapping[str, str]

MESH_AXES = ("data", "fsdp", "expert", "context", "model")
BATCH_AXES = ("data", "fsdp", "expert")  # mesh axes that split the rows of a batch

RULES: AxisRules = {
    "vocab": "model",
    "heads": "model",
    "kv_heads": "model",
    "hidden_dim": "model",
    "experts": "expert",
    "dim": "fsdp",
}


def axis_names(path: str, table: AxisTable) -> tuple[str, ...]:
    """The axis names of the parameter at `path`: the first row that matches.

    Raises ShardingError if no row does.
    """
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
    """How the parameter at `path` is split over a mesh of these axes.

    Raises ShardingError if the table does not know it.
    """
    split_over = (rules.get(name) for name in axis_names(path, table))
    return PartitionSpec(*(axis if axis in mesh_axes else None for axis in split_over))


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
    for name, size, axis in zip(names, shape, spec, strict=True):
        if axis is not None and size % mesh.shape[axis]:
            raise ShardingError(
                f"the mesh splits {name} over {axis}={mesh.shape[axis]}, which does not divide "
                f"{name}={size} of {path} {list(shape)}. Choose a mesh whose {axis} divides {size}."
            )
    return spec


def batch_spec(mesh_axes: Sequence[str], rank: int = 2) -> PartitionSpec:
    """How an array of `rank` axes, rows first and positions second, is split over such a mesh."""
    rows = tuple(axis for axis in BATCH_AXES if axis in mesh_axes)
    positions = "context" if "context" in mesh_axes and rank > 1 else None
    return PartitionSpec(rows or None, *([positions] if rank > 1 else []), *[None] * (rank - 2))


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    size = 1
    for axis in BATCH_AXES:
        size *= mesh.shape.get(axis, 1)
    return size
