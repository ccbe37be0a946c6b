"""A model's weights as a flat dictionary from paths, such as `blocks.0.mlp.up.kernel`, to arrays.

It includes running statistics (`nnx.BatchStat`), which are stored and sharded like weights;
`statistics` selects them, so that no optimizer treats them as weights. It also includes the
histories of delayed scaling, which `amax_histories` selects.
"""

from collections.abc import Callable, Mapping
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


def split_abstract(
    make: Callable[..., nnx.Module], *arguments: Any
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The `split` of the model that `make` builds, with jax.ShapeDtypeStruct as weights; nothing is
    computed."""
    made = []

    def weights(*arguments: Any) -> Parameters:
        graph, parameters = split(make(*arguments))
        made.append((graph, list(parameters)))
        return parameters

    parameters = jax.eval_shape(weights, *arguments)
    ((graph, names),) = made
    return graph, {name: parameters[name] for name in names}  # JAX sorts them


def merge(graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array]) -> Any:
    """The model that `split` took apart, with the given weights."""
    values = {_path(name): value for name, value in parameters.items()}
    state: nnx.State[Any, Any] = nnx.State(nnx.traversals.unflatten_mapping(values))
    return nnx.merge(graph, state)


def axis_names_of(graph: nnx.GraphDef[Any], parameters: Mapping[str, Any]) -> AxisNames:
    """The axis names of parameters, given as arrays or as anything with their shapes."""
    state = nnx.state(merge(graph, parameters), _STORED)
    return {
        _name(path): variable.get_metadata(AXES)
        for path, variable in nnx.to_flat_state(state)
        if variable.has_metadata(AXES)
    }


def statistics(model: nnx.Module) -> Parameters:
    """Only the running statistics, which training updates without gradients."""
    return _flat(nnx.state(model, nnx.BatchStat))


def amax_histories(model: nnx.Module) -> Parameters:
    """Only the histories of delayed scaling: the state of a training run, not of a model."""
    return _flat(nnx.state(model, AmaxHistory))


def _flat(state: Any) -> Parameters:
    return {_name(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _path(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))
