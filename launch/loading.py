"""Loads weights with a progress bar."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.progress import progress
from models import pretrained
from models.parallel.scan import scanned
from models.pretrained import Pretrained


def load_with_progress(
    directory: Path,
    mesh: Any,
    *,
    dtype: str | None = None,
    tasks: Sequence[str] = (),
    pad: bool = False,
    scan_layers: bool = False,
) -> Pretrained:
    """`models.pretrained.load` with a progress bar of the bytes read.

    With `scan_layers`, blocks run as one loop, and the model must not be saved.
    Raises ConfigError, too, if the blocks are not alike.
    """
    with progress("weights", unit="B", unit_scale=True) as bar:
        model = pretrained.load(
            directory,
            mesh,
            dtype=dtype,
            param_dtype=dtype,
            tasks=tasks,
            pad=pad,
            on_plan=bar.reset,
            on_tensor=bar.update,
        )
    return looped(model) if scan_layers else model


def looped(model: Pretrained) -> Pretrained:
    """The model with its blocks in one loop; it must not be saved, and what is given is freed.

    Raises ConfigError if the blocks are not alike.
    """
    graph, parameters = scanned(model.graph, model.parameters)
    return model._replace(graph=graph, parameters=parameters)
