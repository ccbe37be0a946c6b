"""Bars that show how far something is."""

from typing import Any

from tqdm import tqdm


def progress(what: str, **options: Any) -> tqdm:
    """A bar on standard error, empty as long as nothing is known of its length."""
    return tqdm(desc=what, dynamic_ncols=True, delay=1e-9, **options)
