"""The flags of a run, defined from its settings, and the run that they describe."""

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from absl import flags

from launch.checkpoints import run_directory, steps
from launch.config import TrainConfig
from launch.processes import join_processes
from launch.settings import define_flags, from_flags, names_of
from launch.training.platform import prepare_platform

flags.disclaim_key_flags()


def define_run_flags(defaults: TrainConfig) -> None:
    """Defines an absl flag for every setting of a run, with these defaults."""
    flags.DEFINE_string(
        "checkpoint_dir",
        str(defaults.checkpoint_dir),
        "Run directory, for checkpoints and metrics.jsonl.",
    )
    for record in (defaults, *_parts(defaults).values()):
        define_flags(record)


def run_of_flags(defaults: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The run that the flags describe, with the platform ready and its processes connected.

    Raises LaunchError for settings that are not possible.
    """
    parts = {name: from_flags(type(part), values) for name, part in _parts(defaults).items()}
    own = {entry.name: values[entry.name] for entry in fields(defaults) if "help" in entry.metadata}
    directory = run_directory(values["checkpoint_dir"])
    config = TrainConfig(checkpoint_dir=directory, **own, **parts)
    last_step = max(steps(directory), default=0)
    prepare_platform(config.precision.resolve(), config.seed, last_step, os.environ)
    join_processes()
    return config


def setting_names(config: TrainConfig) -> set[str]:
    """The names of the flags of a run's settings."""
    records = (config, *_parts(config).values())
    return {name for record in records for name in names_of(type(record))}


def _parts(config: TrainConfig) -> dict[str, Any]:
    """The records within the run's."""
    values = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    return {name: value for name, value in values.items() if is_dataclass(value)}
