"""A run's metrics as event files of TensorBoard."""

import importlib
from pathlib import Path
from typing import Any

from launch.errors import SettingsError

FOLDER = "tensorboard"


class TensorBoardFile:
    """Numbers become scalars, texts become texts; both have a run's steps.

    TensorBoard hides what a run that was interrupted wrote of steps after `last_step`. Raises
    SettingsError without tensorboardX.
    """

    def __init__(self, directory: Path, last_step: int) -> None:
        try:
            module = importlib.import_module("tensorboardX")  # takes a second: loads any torch
        except ModuleNotFoundError as error:
            raise SettingsError(
                "--tensorboard needs tensorboardX: pip install --group tensorboard, or leave "
                "the flag out."
            ) from error
        self._writer = module.SummaryWriter(str(directory), purge_step=last_step + 1)

    def write(self, *, step: int, **record: Any) -> None:
        """Adds the numbers and texts of a record."""
        for name, value in record.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
