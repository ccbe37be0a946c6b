"""A training state as the items of a checkpoint, one per field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from launch.checkpoints.reader import PARAMETERS, restore, stored_items
from launch.program import say
from models.parallel.depth import Order

State = TypeVar("State", bound=NamedTuple)
_MEANT = {"scaling": "the histories of delayed scaling", "average": "the average of the weights"}


def items(state: NamedTuple) -> dict[str, Any]:
    """The items that `CheckpointWriter.save` takes, for a state with a field `parameters`. Fields
    without arrays are left out."""
    return {
        name: tree if isinstance(tree, dict) else {name: tree}
        for name, tree in state._asdict().items()
        if jax.tree.leaves(tree)
    }


def restore_state(
    directory: Path,
    step: int,
    target: State,
    start: Callable[[Any], State],
    order: Order | None = None,
) -> State:
    """The state of a checkpoint in the shardings of `target`, of jax.ShapeDtypeStruct, whose stacks
    have their blocks in an order.

    Fields that it lacks, since they were not needed then, are those of `start`, which makes a first
    state of parameters and may donate these. Raises CheckpointError if the stored arrays have other
    paths or shapes.
    """
    wanted = items(target)
    stored = stored_items(directory, step)
    lacking = [name for name in wanted if name not in stored]
    parameters = restore(directory, step, PARAMETERS, wanted[PARAMETERS], order)
    state = target._replace(**{PARAMETERS: parameters})
    if lacking:
        names = ", ".join(_MEANT.get(name, name) for name in lacking)
        say(f"WARNING: checkpoint {step} in {directory} lacks {names}: starting them afresh")
        state = start(parameters)
    restored = {
        name: restore(directory, step, name, tree, order)
        for name, tree in wanted.items()
        if name != PARAMETERS and name in stored
    }
    bare = {name: isinstance(getattr(target, name), dict) for name in restored}
    return state._replace(
        **{name: tree if bare[name] else tree[name] for name, tree in restored.items()}
    )
