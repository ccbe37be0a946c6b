"""The same model on several parts of a mesh."""

import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding

from launch.meshes import make_mesh, parse_mesh, text_of
from launch.serving.errors import ServingError
from models.parameters import Parameters

COPIES, MODEL = "data", "model"


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


def copies(parameters: Parameters, count: int) -> Iterator[tuple[Mesh, Parameters]]:
    """A mesh and the parameters on it for each copy; the first one is what is given."""
    shardings = {name: array.sharding for name, array in parameters.items()}
    mesh = next(iter(shardings.values())).mesh
    yield mesh, parameters
    for number in range(1, count):
        own = make_mesh(mesh.shape, first=number * math.prod(mesh.shape.values()))
        places = {name: NamedSharding(own, sharding.spec) for name, sharding in shardings.items()}
        yield own, jax.device_put(parameters, places)
