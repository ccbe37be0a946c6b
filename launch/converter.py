"""Converts between the two checkpoint layouts: safetensors files and a run directory."""

from dataclasses import asdict
from pathlib import Path

import jax

from launch import checkpoints
from launch.errors import CheckpointError
from launch.generator import read_run
from launch.loading import load_with_progress
from launch.meshes import choose_mesh
from launch.program import say
from launch.text import copy_companions
from launch.trainer import as_json
from models import pretrained
from models.pretrained import describe
from models.weights.fields import CONFIG_FILE
from models.weights.wrong_directories import held_instead

CONVERTED_STEP = 0


def convert(source: Path, target: Path, mesh: str | None) -> None:
    """Writes the model in `source`, in either layout, to `target` in the other.

    Raises CheckpointError if the target is not empty, and whatever reading the source raises.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"--target={target} is not empty, and nothing is overwritten. Give a new or empty "
            "directory."
        )
    to_run = (source / CONFIG_FILE).is_file()
    if to_run:
        _to_run(source, target, mesh)
    elif not checkpoints.steps(source):
        raise CheckpointError(
            held_instead(source)
            or f"--source={source} has neither a {CONFIG_FILE} nor a checkpoint of a run"
        )
    else:
        pretrained.save(target, read_run(source, mesh))
    copy_companions(source, target)
    say(f"{target} now holds {'a run directory' if to_run else 'a Hugging Face directory'}")


def _to_run(source: Path, target: Path, mesh: str | None) -> None:
    config = describe(source).config
    sizes = choose_mesh(mesh, config, batch_size=jax.device_count())
    model = load_with_progress(source, sizes)
    record = {
        "model": as_json({"architecture": model.architecture.name} | asdict(model.config)),
        "config_json": dict(model.fields.values),
    }
    with checkpoints.RunLock(target):
        writer = checkpoints.CheckpointWriter(target, checkpoints.Retention(1))
        writer.save(CONVERTED_STEP, {checkpoints.PARAMETERS: model.parameters}, record)
        writer.close()
