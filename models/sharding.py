"""Shardings from axis names: models name the axes of their parameters where they create them, and
this file maps the names to mesh axes.

Mesh axes: `stage` (stacked blocks, and the vocabulary where it divides it), `data` (rows of the
batch), `fsdp` (rows as well, and the weights between uses), `expert` (rows as well, and the
experts), `context` (positions of each row), `model` (heads, feed-forward width, vocabulary),
`kv_replica` (like `model`, but its cores hold the same key/value heads) and `attention_data` (like
`model`, but for attention its cores have the same heads and rows of their own). A mesh need not
have all of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.errors import ShardingError
from models.parameters import AxisNames

# name of an array axis -> mesh axes it is split over; axes not named here are not split
AxisRules = Mapping[str, tuple[str, ...]]

MESH_AXES = (
    *("stage", "data", "fsdp", "expert", "context", "model", "kv_replica", "attention_data"),
)
FULLY_SHARDED = "fsdp"
"""The mesh axis over which weights are split between uses."""

BATCH_AXES = ("data", "fsdp", "expert")  # mesh axes that split the rows of a batch
HEAD_AXES = ("model", "kv_replica")  # mesh axes of attention's tensor parallelism
TENSOR_AXES = (*HEAD_AXES, "attention_data")  # of that of everything else

VOCABULARY = "vocab"
"""The array axis that may be of any size: axes that do not divide it split another one."""

RULES: AxisRules = {
    VOCABULARY: ("stage", *TENSOR_AXES),
    "heads": HEAD_AXES,
    "kv_heads": ("model",),
    "hidden_dim": TENSOR_AXES,
    "split_channels": TENSOR_AXES,  # of convolutions, which zeros would change: norms see them all
    "experts": ("expert",),
    "dim": ("fsdp",),
    "layers": ("stage",),
}


def axis_names(path: str, names: AxisNames) -> tuple[str, ...]:
    """The axis names of the parameter at `path`.

    A path such as `blocks.*.mlp.up.kernel`, of the stacked parameters of all blocks, has `layers`
    as its first axis. Raises ShardingError if the parameter has no names.
    """
    if ".*." in path:
        return ("layers", *axis_names(path.replace(".*.", ".0."), names))
    if path not in names:
        raise ShardingError(
            f"the axes of the parameter {path!r} have no names. Name them where the variable is "
            "created: nnx.Param(values, axes=(…)), with a name from models/sharding.py for each "
            "axis."
        )
    return names[path]


def partition_spec(
    path: str, axes: AxisNames, rules: AxisRules, mesh_axes: Sequence[str] = MESH_AXES
) -> PartitionSpec:
    """The partition spec of the parameter at `path` over a mesh with these axes.

    Raises ShardingError if its axes have no names.
    """
    names = axis_names(path, axes)
    return make_spec([axis for axis in rules.get(n, ()) if axis in mesh_axes] for n in names)


def split_axes(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    """The mesh axes that split each array axis."""
    return tuple((part,) if isinstance(part, str) else tuple(part or ()) for part in spec)


def make_spec(axes: Iterable[Sequence[str]]) -> PartitionSpec:
    """The inverse: the spec for the mesh axes of every array axis."""
    return PartitionSpec(
        *(tuple(part) if len(part) > 1 else next(iter(part), None) for part in axes)
    )


def parameter_shardings(
    mesh: Mesh, parameters: Mapping[str, Any], axes: AxisNames, rules: AxisRules = RULES
) -> dict[str, NamedSharding]:
    """The sharding of every parameter, given as anything with a shape.

    Raises ShardingError if an axis does not divide evenly.
    """
    return {
        path: NamedSharding(mesh, _checked_spec(mesh, path, parameter.shape, axes, rules))
        for path, parameter in parameters.items()
    }


def _checked_spec(
    mesh: Mesh, path: str, shape: Sequence[int], axes: AxisNames, rules: AxisRules
) -> PartitionSpec:
    names = axis_names(path, axes)
    spec = partition_spec(path, axes, rules, mesh.axis_names)
    if len(names) != len(shape):
        raise ShardingError(
            f"{path} has the shape {list(shape)}, but {len(names)} axis names: {list(names)}. "
            "Correct them where the variable is created."
        )
    if VOCABULARY in names:
        spec = _split_vocabulary(mesh, shape, list(split_axes(spec)), names.index(VOCABULARY))
    for name, size, split in zip(names, shape, split_axes(spec), strict=True):
        parts = math.prod(mesh.shape[axis] for axis in split)
        if size % parts:
            over = "·".join(split)
            raise ShardingError(
                f"the mesh splits {name} over {over}={parts}, which does not divide {name}={size} "
                f"of {path} {list(shape)}. Choose a mesh whose {over} divides {size}."
            )
    return spec


def _split_vocabulary(
    mesh: Mesh, shape: Sequence[int], split: list[tuple[str, ...]], words: int
) -> PartitionSpec:
    """The spec of an array whose axis `words` has the vocabulary, which stages of a pipeline split
    where they divide it. Tensor parallelism that does not divide it splits another axis before all
    others, or none."""

    def is_even(size: int, axes: Sequence[str]) -> bool:
        return size % math.prod(mesh.shape[axis] for axis in axes) == 0

    tensor = tuple(axis for axis in split[words] if axis in TENSOR_AXES)
    if not is_even(shape[words], split[words]):
        split[words] = tensor
    if not is_even(shape[words], tensor):
        split[words] = ()
        for axis, size in enumerate(shape):
            if axis != words and is_even(size, (*tensor, *split[axis])):
                split[axis] = (*tensor, *split[axis])
                break
    return make_spec(split)


def batch_spec(mesh_axes: Sequence[str], rank: int = 2) -> PartitionSpec:
    """The split of an array of `rank` axes, rows first and positions second, over a mesh's axes."""
    rows = tuple(axis for axis in BATCH_AXES if axis in mesh_axes)
    positions = "context" if "context" in mesh_axes and rank > 1 else None
    return PartitionSpec(rows or None, *([positions] if rank > 1 else []), *[None] * (rank - 2))


def batch_shards(mesh: Mesh) -> int:
    """The number of parts that the rows of a batch are split into."""
    size = 1
    for axis in BATCH_AXES:
        size *= mesh.shape.get(axis, 1)
    return size
