"""Progress bars."""

from typing import Any

from tqdm import tqdm


def progress(what: str, **options: Any) -> tqdm:
    """A progress bar on standard error, empty while its length is unknown."""
    return tqdm(desc=what, dynamic_ncols=True, delay=1e-9, **options)
