"""The same model on several parts of a mesh."""

import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding

from launch.meshes import make_mesh, parse_mesh, text_of
from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from models.parallel.cache_split import CacheSplit
from models.parameters import Parameters

COPIES, MODEL, POSITIONS = "data", "model", CacheSplit.axis


def split_mesh(text: str) -> tuple[str, int]:
    """The mesh of one copy, and how many there are. Raises ServingError for other axes, MeshError
    if there are not so many devices."""
    sizes = parse_mesh(text)
    others = [axis for axis, size in sizes.items() if size > 1 and axis not in (COPIES, MODEL)]
    if others:
        raise ServingError(
            f"--mesh={text} splits {', '.join(others)}; a server splits the model ({MODEL}), and "
            f"has several copies of it ({COPIES})"
        )
    make_mesh(sizes)
    return text_of({**sizes, COPIES: 1}), sizes.get(COPIES, 1)


def with_split_positions(mesh_text: str, config: EngineConfig) -> str:
    """The mesh of one copy, of whose cores some share the positions of the cache. Raises
    ServingError if they, or the slots of a block, cannot be shared out."""
    sizes, count = parse_mesh(mesh_text), config.decode_context_parallel_size
    if count == 1:
        return mesh_text
    if sizes[MODEL] % count or config.block_size % count:
        raise ServingError(
            f"--decode_context_parallel_size={count} must divide the cores that share a model "
            f"(--mesh={MODEL}={sizes[MODEL]}) and the tokens of a block "
            f"(--block_size={config.block_size})"
        )
    return text_of({**sizes, MODEL: sizes[MODEL] // count, POSITIONS: count})


def cache_split(mesh: Mesh) -> CacheSplit | None:
    """How the cores of one copy share the positions of the cache; None if each has all."""
    return CacheSplit(mesh) if mesh.shape.get(POSITIONS, 1) > 1 else None


def copies(parameters: Parameters, count: int) -> Iterator[tuple[Mesh, Parameters]]:
    """A mesh and the parameters on it for each copy; the first one is what is given."""
    shardings = {name: array.sharding for name, array in parameters.items()}
    mesh = next(iter(shardings.values())).mesh
    yield mesh, parameters
    for number in range(1, count):
        own = make_mesh(mesh.shape, first=number * math.prod(mesh.shape.values()))
        places = {name: NamedSharding(own, sharding.spec) for name, sharding in shardings.items()}
        yield own, jax.device_put(parameters, places)
