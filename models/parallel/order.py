"""The order of a text's positions on the cores among which it is divided."""

import numpy as np


def balanced(length: int, parts: int) -> np.ndarray:
    """Positions [length] in an order whose `parts` equal parts see equally many keys.

    Causal attention does more work for later positions: a text is cut into twice as many chunks
    as cores, and core i takes chunks i and 2·parts − 1 − i ("zigzag"; Llama 3 Herd of Models,
    2024, §3.3.2). `length` must be a multiple of 2·parts.
    """
    chunks = np.arange(length, dtype=np.int32).reshape(2 * parts, -1)
    return np.concatenate([chunks[:parts], chunks[: parts - 1 : -1]], axis=1).reshape(-1)


def inverse(order: np.ndarray) -> np.ndarray:
    """The place of each position in an order: balanced(…)[inverse(balanced(…))] counts up."""
    return np.argsort(order).astype(np.int32)
