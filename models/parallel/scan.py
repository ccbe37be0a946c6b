"""Models whose blocks run as one loop, so that one block is compiled for all."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.errors import ConfigError
from models.parallel.blocks import BlockRun, CoreBlock
from models.parallel.depth import paths_of_stacks
from models.parameters import Parameters, merge, split

_STACKED, _FIRST = "blocks.*.", "blocks.0.block."


def are_alike(model: Any) -> bool:
    """Whether a model's blocks differ in their weights alone."""
    blocks = getattr(model, "blocks", None)
    if blocks is None or not getattr(model, "stacks", True):
        return False
    return all(nnx.graphdef(block) == nnx.graphdef(blocks[0]) for block in blocks)


def scanned(
    graph: nnx.GraphDef[Any], parameters: Parameters
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """A model for inference with its blocks in a loop, and their weights stacked; those that are
    given are freed.

    Raises ConfigError if the blocks are not alike.
    """
    model: Any = nnx.eval_shape(lambda: merge(graph, parameters))
    if not are_alike(model):
        raise ConfigError(
            f"the blocks of this {type(model).__name__} are not alike, or do not run once each: "
            "they cannot be one loop. Leave out --scan_layers."
        )
    weights = dict(parameters)
    for path, own in paths_of_stacks(parameters).items():
        values = [weights.pop(name) for name in own]
        weights[path.replace(_STACKED, _FIRST)] = _stacked(values)
    block = model.blocks[0]
    model.blocks = nnx.List([CoreBlock(block, _STACKED[:-1], BlockRun(), stacked=True)])
    looped, _ = split(model)
    return looped, weights


def _stacked(values: list[Any]) -> Any:
    """[L, …], each part on the devices where its layers' parts were."""
    sharding = values[0].sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    stacked = jax.jit(lambda values: jnp.stack(values), out_shardings=sharding)(values)
    for value in values:
        value.delete()
    return stacked
