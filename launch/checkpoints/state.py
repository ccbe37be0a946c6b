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
    """The items that `CheckpointWriter.save` takes, for a state with a field `parameters`. What
    holds no arrays is left out: fields, and parameters that a part of the optimizer leaves to
    another part."""
    return {
        name: _drop_empty(tree if isinstance(tree, dict) else {name: tree})
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
    state = target._replace(**{PARAMETERS: _as(getattr(target, PARAMETERS), parameters)})
    if lacking:
        names = ", ".join(_MEANT.get(name, name) for name in lacking)
        say(f"WARNING: checkpoint {step} in {directory} lacks {names}: starting them afresh")
        state = start(getattr(state, PARAMETERS))
    restored = {
        name: restore(directory, step, name, tree, order)
        for name, tree in wanted.items()
        if name != PARAMETERS and name in stored
    }
    return state._replace(
        **{name: _as(getattr(target, name), tree) for name, tree in restored.items()}
    )


def _drop_empty(tree: Any) -> Any:
    """The tree without entries of dictionaries that hold no arrays."""

    def filled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {key: _drop_empty(value) for key, value in node.items() if jax.tree.leaves(value)}

    return jax.tree.map(filled, tree, is_leaf=lambda node: isinstance(node, dict))


def _as(target: Any, item: Any) -> Any:
    """The arrays of an item in a tree like `target`, which has the same ones in the same order."""
    return jax.tree.unflatten(jax.tree.structure(target), jax.tree.leaves(item))
