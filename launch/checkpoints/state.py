"""A training state as the items of a checkpoint: parameters, what some runs have, and the rest."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from launch.checkpoints.reader import AVERAGE, PARAMETERS, STATE, restore

State = TypeVar("State", bound=NamedTuple)


def _zeros(target: jax.ShapeDtypeStruct, _: jax.Array) -> jax.Array:
    return jnp.zeros(target.shape, target.dtype)


def _converted(target: jax.ShapeDtypeStruct, parameter: jax.Array) -> jax.Array:
    return jnp.array(parameter, target.dtype, copy=True)


_FRESH: Mapping[str, Callable[[jax.ShapeDtypeStruct, Any], jax.Array]] = {
    "scaling": _zeros,
    AVERAGE: _converted,
}
"""Fields that some runs have, by path of parameters -> how they begin, of the parameter if there is
one: a run may go on with another precision, or begin to average."""


def items(state: NamedTuple) -> dict[str, Any]:
    """What `CheckpointWriter.save` takes, for a state with a field `parameters`."""
    fields = state._asdict()
    optional = {name: fields.pop(name) for name in _FRESH if name in fields}
    return {
        PARAMETERS: fields.pop(PARAMETERS),
        STATE: fields,
        **{name: tree for name, tree in optional.items() if tree},
    }


def restore_state(directory: Path, step: int, target: State) -> State:
    """The state of a checkpoint in the shardings of `target`, of jax.ShapeDtypeStruct.

    Raises CheckpointError if the stored arrays have other paths or shapes.
    """
    wanted = items(target)
    fields = restore(directory, step, STATE, wanted.pop(STATE))
    parameters = restore(directory, step, PARAMETERS, wanted.pop(PARAMETERS))
    for name, tree in wanted.items():
        if (directory / str(step) / name).is_dir():
            fields[name] = restore(directory, step, name, tree)
        else:
            fields[name] = {
                path: jax.device_put(_FRESH[name](leaf, parameters.get(path)), leaf.sharding)
                for path, leaf in tree.items()
            }
    return target._replace(**fields, **{PARAMETERS: parameters})
