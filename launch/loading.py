"""Reading weights, with a bar that shows how far it is."""

from pathlib import Path
from typing import Any

from tqdm import tqdm

from models import pretrained
from models.pretrained import Pretrained


def progress(what: str, **options: Any) -> tqdm:
    """A bar on standard error, empty as long as nothing is known of its length."""
    return tqdm(desc=what, dynamic_ncols=True, delay=1e-9, **options)


def load_with_progress(
    directory: Path, mesh: Any, *, dtype: str | None = None, pad: bool = False
) -> Pretrained:
    """`models.pretrained.load` with a bar of the bytes read."""
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
