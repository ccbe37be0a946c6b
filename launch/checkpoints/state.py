"""A training state as the items of a checkpoint: parameters, and the rest."""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from launch.checkpoints.reader import PARAMETERS, STATE, restore

State = TypeVar("State", bound=NamedTuple)


def items(state: NamedTuple) -> dict[str, Any]:
    """What `CheckpointWriter.save` takes, for a state with a field `parameters`."""
    fields = state._asdict()
    return {PARAMETERS: fields.pop(PARAMETERS), STATE: fields}


def restore_state(directory: Path, step: int, target: State) -> State:
    """The state of a checkpoint in the shardings of `target`, of jax.ShapeDtypeStruct.

    Raises CheckpointError if the stored arrays have other paths or shapes.
    """
    items_of_target = items(target)
    fields = restore(directory, step, STATE, items_of_target[STATE])
    parameters = restore(directory, step, PARAMETERS, items_of_target[PARAMETERS])
    return target._replace(**fields, **{PARAMETERS: parameters})
