"""The device mesh ("data", "model") and the shardings on it."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from launch.errors import MeshError
from models.llama.config import LlamaConfig
from models.llama.sharding import AXES, RULES
from models.sharding import axis_names, partition_spec

MESH_AXES = ("data", "model")


def parse_mesh(text: str) -> dict[str, int]:
    """ "data=4,model=2" -> {"data": 4, "model": 2}; an axis left out has size 1.

    Raises MeshError for anything else.
    """
    sizes = dict.fromkeys(MESH_AXES, 1)
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in sizes or not size.isdecimal() or int(size) == 0:
            raise MeshError(
                f"--mesh={text}: cannot read {part!r}. Write it as data=4,model=2 with positive "
                f"sizes; the axes are {' and '.join(MESH_AXES)}."
            )
        sizes[name] = int(size)
    return sizes


def default_mesh(num_devices: int, num_kv_heads: int, batch_size: int) -> dict[str, int]:
    """A mesh of all devices: two-way tensor parallelism from four devices on, data parallelism
    with the rest; more of the first only where the batch cannot be split far enough.

    Raises MeshError if no mesh fits.
    """
    for model in range(2 if num_devices >= 4 else 1, num_devices + 1):
        data, remainder = divmod(num_devices, model)
        if remainder == 0 and num_kv_heads % model == 0 and batch_size % data == 0:
            return {"data": data, "model": model}
    raise MeshError(
        f"no mesh of {num_devices} devices fits a batch of {batch_size} and {num_kv_heads} "
        "key-value heads: `data` must divide the batch and `model` the heads. Choose --batch_size "
        "or --num_kv_heads accordingly, or make fewer devices visible."
    )


def make_mesh(sizes: Mapping[str, int]) -> Mesh:
    """The mesh over the first devices. Raises MeshError if the sizes need more than there are."""
    wanted = sizes["data"] * sizes["model"]
    if wanted > jax.device_count():
        raise MeshError(
            f"--mesh=data={sizes['data']},model={sizes['model']} needs {wanted} devices, but "
            f"the platform {jax.default_backend()!r} has {jax.device_count()}. Choose sizes whose "
            f"product is at most {jax.device_count()}, or leave --mesh out."
        )
    # Auto: XLA chooses the shardings of activations from those of weights and batch.
    auto = (AxisType.Auto,) * len(MESH_AXES)
    shape = tuple(sizes[axis] for axis in MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=auto, devices=jax.devices()[:wanted])


def parameter_shardings(mesh: Mesh, parameters: Mapping[str, Any]) -> dict[str, NamedSharding]:
    """The sharding of every parameter. Raises MeshError if an axis does not divide evenly."""
    for path, parameter in parameters.items():
        for name, size in zip(axis_names(path, AXES), parameter.shape, strict=True):
            split_over = RULES.get(name)
            if split_over is not None and size % mesh.shape[split_over]:
                raise MeshError(
                    f"the mesh splits {name} over {split_over}={mesh.shape[split_over]}, which "
                    f"does not divide {name}={size} of {path} {list(parameter.shape)}. Choose a "
                    f"--mesh whose {split_over} divides {size}."
                )
    return {path: NamedSharding(mesh, partition_spec(path, AXES, RULES)) for path in parameters}


def state_shardings(mesh: Mesh, state: Any, parameters: Mapping[str, NamedSharding]) -> Any:
    """Shardings for a tree that holds dictionaries like `parameters` (weights, moments) and
    scalars: what stands under a parameter's path is split like it, the rest is replicated."""
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: tuple[Any, ...], _: Any) -> NamedSharding:
        name = getattr(path[-1], "key", None) if path else None
        return parameters.get(name, replicated) if isinstance(name, str) else replicated

    return jax.tree_util.tree_map_with_path(sharding, state)


def batch_sharding(mesh: Mesh, batch_size: int) -> NamedSharding:
    """The sharding of token batches [batch_size, T]. Raises MeshError if `data` does not divide."""
    if batch_size % mesh.shape["data"]:
        raise MeshError(
            f"--batch_size={batch_size} is not a multiple of data={mesh.shape['data']} in the "
            "mesh: every data-parallel group takes the same number of rows. Change one of them."
        )
    return NamedSharding(mesh, PartitionSpec("data", None))


def choose_mesh(text: str | None, config: LlamaConfig, batch_size: int) -> Mesh:
    """The mesh of the --mesh flag, or the default one for all devices."""
    if text is not None:
        return make_mesh(parse_mesh(text))
    return make_mesh(default_mesh(jax.device_count(), config.num_kv_heads, batch_size))
