"""Tables that a config.json calls tied, and that a file may hold twice all the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np

ROWS = 4096  # compared at a time: tables that differ do so at once


def stored_apart(tensors: Mapping[str, Any], first: str, second: str) -> bool:
    """Whether both tensors are stored and hold other numbers; `first` and `second` are endings of
    their keys."""
    tables = []
    for ending in (first, second):
        keys = [key for key in tensors if key == ending or key.endswith(f".{ending}")]
        if len(keys) != 1:
            return False
        tables.append(tensors[keys[0]])
    if tables[0].shape != tables[1].shape:
        return True
    left, right = (table.view() for table in tables)
    return any(
        not np.array_equal(left[start : start + ROWS], right[start : start + ROWS])
        for start in range(0, left.shape[0], ROWS)
    )
