"""A model's weights as a flat dictionary: path, such as `blocks.0.mlp.up.kernel`, to array."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

# Values are jax.Array, or jax.ShapeDtypeStruct for a model that was only traced.
Parameters = dict[str, Any]


def split(model: nnx.Module) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The model's structure and its weights; `merge` is the inverse."""
    graph, state = nnx.split(model, nnx.Param)
    return graph, {_name(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def merge(graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array]) -> Any:
    """The model of `split` with the given weights."""
    state: nnx.State[Any, Any] = nnx.State(
        nnx.traversals.unflatten_mapping(
            {_path(name): nnx.Param(value) for name, value in parameters.items()}
        )
    )
    return nnx.merge(graph, state)


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _path(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))
