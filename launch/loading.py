"""Loads weights with a progress bar."""

from pathlib import Path
from typing import Any

from launch.progress import progress
from models import pretrained
from models.pretrained import Pretrained


def load_with_progress(
    directory: Path, mesh: Any, *, dtype: str | None = None, pad: bool = False
) -> Pretrained:
    """`models.pretrained.load` with a progress bar of the bytes read."""
    with progress("weights", unit="B", unit_scale=True) as bar:
        return pretrained.load(
            directory,
            mesh,
            dtype=dtype,
            param_dtype=dtype,
            pad=pad,
            on_plan=bar.reset,
            on_tensor=bar.update,
        )
