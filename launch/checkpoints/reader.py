"""Reads checkpoints: `directory`/<step>/ with `parameters`, `record`, and others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from launch.checkpoints.layers import ORDER, convert, is_stacked, separate, stacked_target
from launch.checkpoints.manifest import find_damage
from launch.errors import CheckpointError
from launch.program import say
from models.parallel.depth import Order

PARAMETERS, RECORD = "parameters", "record"
AVERAGE = "average"  # of the parameters; where there is one, it is what is used
ASIDE = "corrupt"  # folder of damaged checkpoints


def steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints in the directory, newest first."""
    if not directory.is_dir():
        return []
    names = [entry.name for entry in directory.iterdir() if entry.is_dir()]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def sound_steps(directory: Path, *, move_aside: bool) -> Iterator[int]:
    """The steps whose files match their checksums, newest first; damaged ones are reported.

    With `move_aside` a damaged checkpoint is moved to `directory`/corrupt/, never deleted.
    """
    for step in steps(directory):
        damage = find_damage(directory / str(step), (PARAMETERS, RECORD))
        if damage is None:
            yield step
            continue
        kept_at = _move_aside(directory, step) if move_aside else directory / str(step)
        say(
            f"WARNING: checkpoint {step} in {directory} is damaged: {damage}. It is kept as "
            f"{kept_at}; falling back to the checkpoint before it."
        )


def newest(directory: Path, *, move_aside: bool) -> int | None:
    """The newest sound step; None if there has never been a checkpoint.

    Raises CheckpointError if there are checkpoints and all of them are damaged.
    """
    there = steps(directory)
    step = next(sound_steps(directory, move_aside=move_aside), None)
    if step is None and there:
        raise CheckpointError(
            f"every checkpoint in {directory} (steps {there}) is damaged; none was deleted. "
            "Restore one from a backup, or start again with another --checkpoint_dir."
        )
    return step


def read_record(directory: Path, step: int) -> dict[str, Any]:
    """The record of a sound checkpoint."""
    record: dict[str, Any] = json.loads((directory / str(step) / RECORD / "metadata").read_text())
    return record


def stored_items(directory: Path, step: int) -> set[str]:
    """The names of a checkpoint's items."""
    return {entry.name for entry in (directory / str(step)).iterdir() if entry.is_dir()}


def restore(directory: Path, step: int, item: str, target: Any, order: Order | None = None) -> Any:
    """The arrays of an item, read straight into the shardings and dtypes of `target`, a tree of
    jax.ShapeDtypeStruct with shardings.

    The stored blocks may be stacked while those of `target` are not, or vice versa, or be stacked
    in another order. Raises CheckpointError if there are no such arrays, or if they have other
    paths or shapes.
    """
    place = (directory / str(step) / item).absolute()
    with ocp.StandardCheckpointer() as checkpointer:
        try:
            metadata = checkpointer.metadata(place).item_metadata
            if metadata is None:
                raise CheckpointError(
                    f"there are no {item} in {place}. Use another --checkpoint_dir, or restore the "
                    "folder from a copy."
                )
            stacked, stored = is_stacked(metadata.tree), _stored_order(directory, step)
            if stacked == is_stacked(target) and stored == order:
                return checkpointer.restore(place, target)
            read_as = separate(target, order)
            if stacked:
                read_as = stacked_target(read_as, stored)
            return convert(checkpointer.restore(place, read_as), target, stored, order)
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise CheckpointError(
                f"the {item} in {place} do not have the requested shapes: {error}. Use the model "
                "flags that this checkpoint was made with, or another --checkpoint_dir."
            ) from error


def _stored_order(directory: Path, step: int) -> Order | None:
    order = read_record(directory, step).get(ORDER)
    return None if order is None else tuple(order)


def abstract(tree: Any, shardings: Any) -> Any:
    """The `target` of `restore` for a tree of arrays or jax.ShapeDtypeStruct."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )


def _move_aside(directory: Path, step: int) -> Path:
    aside = directory / ASIDE
    aside.mkdir(exist_ok=True)
    taken = {entry.name for entry in aside.iterdir()}
    candidates = (f"{step}-{attempt}" for attempt in range(1, len(taken) + 2))
    target = aside / next(name for name in candidates if name not in taken)
    return (directory / str(step)).rename(target)
