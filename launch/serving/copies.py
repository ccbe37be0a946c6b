"""Copies of a model on several parts of a mesh."""

import math
from collections.abc import Iterator, Mapping

import jax
from jax.sharding import Mesh, NamedSharding

from launch.meshes import make_mesh, parse_mesh, text_of
from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from launch.serving.speculation.config import SpeculativeConfig
from models.parallel.cache_split import CacheSplit
from models.parallel.paged_split import PagedSplit
from models.parallel.row_split import RowSplit
from models.parameters import Parameters

COPIES, MODEL = "data", "model"
SPLITS: Mapping[str, type[CacheSplit] | type[RowSplit]] = {
    "decode_context_parallel_size": CacheSplit,
    "attention_data_parallel_size": RowSplit,
}
"""Settings of an engine by which the cores of one copy share the cache otherwise than by heads."""


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


def with_split_cache(mesh_text: str, config: EngineConfig) -> str:
    """The mesh of one copy, of whose cores some share positions of the cache, or rows of the batch.
    Raises ServingError if those cannot be shared out."""
    sizes = parse_mesh(mesh_text)
    wanted = {name: count for name in SPLITS if (count := getattr(config, name)) > 1}
    if not wanted:
        return mesh_text
    if len(wanted) > 1:
        raise ServingError(f"{' and '.join(f'--{name}' for name in wanted)} exclude each other")
    for name, count in wanted.items():
        if sizes[MODEL] % count:
            raise ServingError(
                f"--{name}={count} must divide the cores that share a model "
                f"(--mesh={MODEL}={sizes[MODEL]})"
            )
        sizes |= {MODEL: sizes[MODEL] // count, SPLITS[name].axis: count}
    if config.block_size % config.decode_context_parallel_size:
        raise ServingError(
            f"--decode_context_parallel_size={config.decode_context_parallel_size} must divide the "
            f"tokens of a block (--block_size={config.block_size})"
        )
    return text_of(sizes)


def check_copies(config: EngineConfig, count: int, wanted: SpeculativeConfig | None) -> None:
    """Raises ServingError for settings that do not go with so many copies of a model."""
    if config.disaggregated_prefill and count != 2:
        raise ServingError(
            f"--disaggregated_prefill needs two copies of the model, not {count}: one for prompts, "
            "one for answers. Write --mesh=data=2"
        )
    if count > 1 and (config.enable_lora or config.lora_modules):
        raise ServingError(f"adapters need --mesh=data=1; there are {count} copies of the model")
    if config.attention_data_parallel_size > 1 and (config.disaggregated_prefill or wanted):
        raise ServingError(
            "--attention_data_parallel_size goes neither with --disaggregated_prefill nor with "
            "--speculative_config: leave one of them out"
        )
    if count > 1 and wanted is not None and wanted.method != "ngram":
        raise ServingError(
            f"{count} copies of the model can guess by ngram alone, not by {wanted.method}: use "
            "--mesh=data=1"
        )


def cache_split(mesh: Mesh) -> PagedSplit | None:
    """How the cores of one copy share the cache; None if by heads alone."""
    kinds = (kind for kind in SPLITS.values() if mesh.shape.get(kind.axis, 1) > 1)
    return next((kind(mesh) for kind in kinds), None)


def copies(parameters: Parameters, count: int) -> Iterator[tuple[Mesh, Parameters]]:
    """A mesh and the parameters on it for each copy; the first one is what is given."""
    shardings = {name: array.sharding for name, array in parameters.items()}
    mesh = next(iter(shardings.values())).mesh
    yield mesh, parameters
    for number in range(1, count):
        own = make_mesh(mesh.shape, first=number * math.prod(mesh.shape.values()))
        places = {name: NamedSharding(own, sharding.spec) for name, sharding in shardings.items()}
        yield own, jax.device_put(parameters, places)
