"""The device mesh and its shardings; models/sharding.py says what its axes mean."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from launch.errors import MeshError
from models import sharding
from models.errors import ShardingError
from models.parameters import AxisNames
from models.sharding import BATCH_AXES, MESH_AXES

ALWAYS = ("data", "model")  # axes that every mesh has
WIDTHS = ("hidden_dim", "decoder_hidden_dim", "num_heads")
"""Fields of configs that say how wide things are that `model` splits."""


def parse_mesh(text: str) -> dict[str, int]:
    """ "data=4,model=2" -> {"data": 4, "model": 2}; `data` and `model` have size 1 if left out.

    Raises MeshError for anything else.
    """
    sizes = dict.fromkeys(ALWAYS, 1)
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in MESH_AXES or not size.isdecimal() or int(size) == 0:
            raise MeshError(
                f"--mesh={text}: cannot read {part!r}. Write it as data=4,model=2 with positive "
                f"sizes; the axes are {', '.join(MESH_AXES)}."
            )
        sizes[name] = int(size)
    return {axis: sizes[axis] for axis in MESH_AXES if axis in sizes}


def default_mesh(
    num_devices: int,
    num_kv_heads: int,
    batch_size: int,
    vocab_size: int = 0,
    widths: Sequence[int] = (),
) -> dict[str, int]:
    """A mesh of all devices: two-way tensor parallelism from four devices on, data parallelism over
    the rest; more tensor parallelism only where the batch cannot be split far enough, none where
    the model cannot be split.

    Raises MeshError if no mesh fits.
    """
    alone = [1] if num_devices >= 4 else []
    for model in [*range(1 + len(alone), num_devices + 1), *alone]:
        data, remainder = divmod(num_devices, model)
        if remainder or batch_size % data:
            continue
        if all(size % model == 0 for size in (num_kv_heads, vocab_size, *widths)):
            return {"data": data, "model": model}
    raise MeshError(
        f"no mesh of {num_devices} devices fits a batch of {batch_size}, {num_kv_heads} key/value "
        f"heads, a vocabulary of {vocab_size} and feed-forward widths of {list(widths)}: `data` "
        "must divide the batch, and `model` the others. Choose --batch_size or the model "
        "accordingly, or make fewer devices visible."
    )


def make_mesh(sizes: Mapping[str, int], first: int = 0) -> Mesh:
    """A mesh of the devices from the `first` one on. Raises MeshError if the sizes need more
    devices than there are."""
    wanted = math.prod(sizes.values())
    if wanted > jax.device_count():
        raise MeshError(
            f"--mesh={text_of(sizes)} needs {wanted} devices, but the platform "
            f"{jax.default_backend()!r} has {jax.device_count()}. Choose sizes whose product is "
            f"at most {jax.device_count()}, or leave --mesh out."
        )
    # Auto: XLA chooses the shardings of activations from those of weights and batch.
    auto = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=auto,
        devices=jax.devices()[first : first + wanted],
    )


def parameter_shardings(
    mesh: Mesh, parameters: Mapping[str, Any], axes: AxisNames
) -> dict[str, NamedSharding]:
    """The sharding of every parameter. Raises MeshError if an axis does not divide evenly."""
    try:
        return sharding.parameter_shardings(mesh, parameters, axes)
    except ShardingError as error:
        raise MeshError(str(error)) from error


def state_shardings(
    mesh: Mesh,
    state: Any,
    parameters: Mapping[str, Any],
    shardings: Mapping[str, NamedSharding],
) -> Any:
    """Shardings for a tree of scalars and of dictionaries like `parameters` (weights, moments),
    which get the shardings of the parameters.

    An array at a parameter's path is split like it; one with fewer axes, such as a factored moment,
    like the axes that it has. Everything else is replicated.
    """
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = getattr(path[-1], "key", None) if path else None
        if not isinstance(name, str) or name not in shardings:
            return replicated
        shape, spec = parameters[name].shape, shardings[name].spec
        axes = _axes_kept(leaf.shape, shape, from_last=_lacks_first_axes(path))
        padded = [*spec, *[None] * (len(shape) - len(spec))]
        return NamedSharding(mesh, PartitionSpec(*(padded[axis] for axis in axes)))

    return jax.tree_util.tree_map_with_path(sharding, state)


def _lacks_first_axes(path: tuple[Any, ...]) -> bool:
    """Whether a part of an optimizer's state is of means over the first of two alike axes: optax
    calls it `v_col`, and its twin `v_row`."""
    return any(getattr(key, "name", None) == "v_col" for key in path)


def _axes_kept(
    part: Sequence[int], whole: Sequence[int], *, from_last: bool = False
) -> Sequence[int]:
    """The axes of a shape that another one has kept, in order; none if it is of other sizes."""
    if from_last:
        mirrored = _axes_kept(part[::-1], whole[::-1])
        return [len(whole) - 1 - place for place in reversed(mirrored)]
    kept: list[int] = []
    for axis, size in enumerate(whole):
        if len(kept) < len(part) and part[len(kept)] == size:
            kept.append(axis)
    return kept if len(kept) == len(part) else []


def batch_sharding(mesh: Mesh, batch_size: int) -> NamedSharding:
    """The sharding of the rows of arrays [batch_size, …].

    Raises MeshError if the mesh axes that split them do not divide the batch.
    """
    if batch_size % sharding.batch_shards(mesh):
        rows = {axis: size for axis, size in mesh.shape.items() if axis in BATCH_AXES}
        raise MeshError(
            f"--batch_size={batch_size} is not a multiple of {text_of(rows, ' · ')} in the mesh: "
            "every data-parallel group takes the same number of rows. Change one of them."
        )
    return NamedSharding(mesh, sharding.batch_spec(mesh.axis_names, rank=1))


def check_window(mesh: Mesh, seq_len: int) -> None:
    """Raises MeshError if the mesh splits the positions of a text unevenly."""
    parts = mesh.shape.get("context", 1)
    if seq_len % parts:
        raise MeshError(
            f"the training sequence length of {seq_len} tokens is not a multiple of "
            f"context={parts} in the mesh. Choose another --seq_len or --mesh."
        )


def fitting_mesh(num_devices: int, config: Any, batch_size: int) -> dict[str, int]:
    """The default mesh for a model's config; models without heads and vocabulary get only data
    parallelism. Raises MeshError if no mesh fits."""
    heads = _sizes(config, "num_kv_heads") or _sizes(config, "num_heads") or (1,)
    widths = {size for name in WIDTHS for size in _sizes(config, name)}
    experts = getattr(config, "experts", None)
    widths.add(0 if experts is None else experts.hidden_dim)
    vocab_size = sum(_sizes(config, "vocab_size"))
    return default_mesh(num_devices, math.gcd(*heads), batch_size, vocab_size, sorted(widths - {0}))


def _sizes(config: Any, name: str) -> tuple[int, ...]:
    """The numbers of a field: of every stage if it has several, none if a model lacks it."""
    value = getattr(config, name, None)
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def choose_mesh(text: str | None, config: Any, batch_size: int) -> Mesh:
    """The mesh of the --mesh flag, or the default mesh of all devices."""
    if text is not None:
        return make_mesh(parse_mesh(text))
    return make_mesh(fitting_mesh(jax.device_count(), config, batch_size))


def text_of(sizes: Mapping[str, int], separator: str = ",") -> str:
    """A mesh as text, such as data=4,model=2."""
    return separator.join(f"{axis}={size}" for axis, size in sizes.items())
