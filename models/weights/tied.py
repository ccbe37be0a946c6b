"""The table of the embedding as the output layer: whether a config.json calls it tied, which a file
may hold twice all the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.weights.fields import Fields

ROWS = 4096  # compared at a time: tables that differ do so at once


def refuse_own_head(fields: Fields) -> None:
    """Raises ConfigError if the output layer has a table of its own."""
    fields.refuse(
        "tie_word_embeddings", True, why="the output layer must share the embedding table"
    )


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
