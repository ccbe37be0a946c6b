"""What fine-tuning begins with: the weights of a checkpoint, and random ones for what is new."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from launch.errors import ModelError
from launch.finetuning.lora import LISTED, shapes_of
from launch.finetuning.tasks import Task
from launch.processes import announce
from models import pretrained
from models.architecture import Architecture
from models.parameters import Parameters, split
from models.pretrained import Described, describe, describe_fields
from models.registry import ARCHITECTURES, sibling
from models.weights.directory import open_tensors
from models.weights.fields import Fields


def random_parameters(
    model: Described, names: Collection[str], seed: int, shardings: Mapping[str, Any]
) -> Parameters:
    """The model's parameters of these names, drawn as at the start of a training, and no others."""
    wanted = sorted(names)

    @partial(jax.jit, out_shardings={name: shardings[name] for name in wanted})
    def draw() -> Parameters:
        _, parameters = split(model.architecture.build(model.config, seed))
        return {name: parameters[name] for name in wanted}

    drawn: Parameters = draw()
    return drawn


def described_for(
    path: Path,
    task: Task,
    labels: Sequence[str],
    problem: str | None = None,
    *,
    dtype: str | None = None,
) -> tuple[Described, Described]:
    """(the model of a directory or a config.json, the same with the head that a task needs).

    `labels` name what a classifier gives; of whatever is classified as a whole, `problem` says what
    that is. Raises ModelError if the model's family has no such head.
    """
    source = describe(path, dtype=dtype, param_dtype=dtype)
    fields = dict(source.fields.values)
    architecture = source.architecture
    if architecture.task != task.head:
        architecture = _sibling(architecture, task.head, path)
        fields["architectures"] = [architecture.name]
    if labels:
        named = dict(enumerate(labels))
        fields |= {
            "num_labels": len(labels),
            "id2label": {str(number): name for number, name in named.items()},
            "label2id": {name: number for number, name in named.items()},
        } | ({} if problem is None else {"problem_type": problem})
    target = describe_fields(Fields(fields, source.fields.where), dtype=dtype, param_dtype=dtype)
    if path.is_dir():
        tensors = open_tensors(path)
        refined = target.architecture.refine(target.config, tensors)
        target = target._replace(config=refined)
    return source, target


def _sibling(architecture: Architecture, head: str, path: Path) -> Architecture:
    headed = sibling(architecture, head)
    if headed is None:
        there = sorted(known.name for known in ARCHITECTURES.values() if known.task == head)
        raise ModelError(
            f"--model={path} is {architecture.name}, whose family has no model for {head}. Choose "
            f"one of {', '.join(there)}."
        )
    return headed


def first_parameters(
    directory: Path | None,
    model: Described,
    mesh: Mesh,
    targets: Mapping[str, Any],
    seed: int,
) -> Parameters:
    """The parameters of the directory's checkpoint that the model has too, and random ones for the
    rest, which are named. `targets` are their dtypes and shardings."""
    loaded = {}
    if directory is not None:
        own = pretrained.load(
            directory, mesh, dtype=model.config.dtype, param_dtype=model.config.param_dtype
        )
        shapes = shapes_of(model)
        loaded = {
            name: value
            for name, value in own.parameters.items()
            if name in shapes and value.shape == shapes[name].shape
        }
    new = shapes_of(model).keys() - loaded.keys()
    if new and directory is not None:
        listed = ", ".join(sorted(new)[:LISTED])
        announce(f"initialised randomly: {listed}{' …' if len(new) > LISTED else ''}")
    shardings = {name: target.sharding for name, target in targets.items()}
    drawn = random_parameters(model, new, seed, shardings) if new else {}
    return {
        name: jax.device_put(value.astype(targets[name].dtype), shardings[name])
        for name, value in (loaded | drawn).items()
    }
