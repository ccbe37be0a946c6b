"""The task of forecasting models."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.errors import DataError
from launch.tasks.media_reader import open_model
from launch.tasks.task import Request, Task
from launch.tasks.text_understanding import write_rows
from models.parameters import merge
from models.pretrained import describe


def forecast(request: Request) -> None:
    """Prints the next values of each series, one line per time step."""
    config = describe(request.directory, tasks=request.tasks).config
    known = read_series(Path(request.input), config.context, config.num_channels)
    model = open_model(request)
    values = np.asarray(_forecast(model.graph, model.parameters, known[None]))[0]
    write_rows(tuple(row) for row in values)


def read_series(file: Path, length: int, channels: int) -> np.ndarray:
    """The last `length` lines of a file of comma-separated numbers, FP32 [length, channels]; a
    first line without numbers is a heading.

    Raises DataError if it cannot be read or is too short.
    """
    try:
        lines = file.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text: {error}") from error
    rows = [line.split(",") for line in lines if line.strip()]
    if rows and not _are_numbers(rows[0]):
        rows = rows[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != channels or not _are_numbers(row):
            raise DataError(
                f"row {number} of {file} is {','.join(row)[:80]!r}, but it must be {channels} "
                "finite numbers, separated by commas"
            )
    if len(rows) < length:
        raise DataError(f"{file} has {len(rows)} rows of numbers, but the model needs {length}")
    return np.array(rows[-length:], np.float32)


def _are_numbers(row: list[str]) -> bool:
    try:
        return all(np.isfinite(float(cell)) for cell in row)
    except ValueError:
        return False


@partial(jax.jit, static_argnums=0)
def _forecast(graph: Any, parameters: Any, known: jax.Array) -> jax.Array:
    return merge(graph, parameters)(known)


TASK = Task("time-series-forecasting", "a file of rows of numbers", forecast)
