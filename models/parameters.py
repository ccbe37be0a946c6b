"""A model's weights as a flat dictionary: path, such as `blocks.0.mlp.up.kernel`, to array.

Running statistics (`nnx.BatchStat`) are among them: they are stored and sharded like weights, but
`statistics` names them, so that no optimizer takes them for its own. So are the histories of
delayed scaling, which `amax_histories` names.
"""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from models.layers.axes import AXES
from models.layers.fp8 import AmaxHistory

# Values are jax.Array, or jax.ShapeDtypeStruct for a model that was only traced.
Parameters = dict[str, Any]

# Path of a parameter -> the names of its axes.
AxisNames = Mapping[str, tuple[str, ...]]

_STORED = (nnx.Param, nnx.BatchStat, AmaxHistory)


def split(model: nnx.Module) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The model's structure and its weights; `merge` is the inverse."""
    graph, state = nnx.split(model, _STORED)
    return graph, _flat(state)


def merge(graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array]) -> Any:
    """The model of `split` with the given weights."""
    values = {_path(name): value for name, value in parameters.items()}
    state: nnx.State[Any, Any] = nnx.State(nnx.traversals.unflatten_mapping(values))
    return nnx.merge(graph, state)


def axis_names_of(graph: nnx.GraphDef[Any], parameters: Mapping[str, Any]) -> AxisNames:
    """The names of the axes of parameters; these are arrays, or anything with their shapes."""
    state = nnx.state(merge(graph, parameters), _STORED)
    return {
        _name(path): variable.get_metadata(AXES)
        for path, variable in nnx.to_flat_state(state)
        if variable.has_metadata(AXES)
    }


def statistics(model: nnx.Module) -> Parameters:
    """The running statistics alone, which training moves without gradients."""
    return _flat(nnx.state(model, nnx.BatchStat))


def amax_histories(model: nnx.Module) -> Parameters:
    """The histories of delayed scaling alone: the state of a training run, not of a model."""
    return _flat(nnx.state(model, AmaxHistory))


def _flat(state: Any) -> Parameters:
    return {_name(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _path(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))
