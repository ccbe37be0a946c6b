"""Flipping bits of an array."""

from __future__ import annotations

import random

import numpy as np


def flip_bits(array: np.ndarray, bits: int, chance: random.Random) -> None:
    """Flips that many distinct bits of an array, or all of them if it has fewer."""
    flat = array.reshape(-1).view(np.uint8)
    width = 1 if array.dtype == np.bool_ else 8
    total = flat.size * width
    for place in chance.sample(range(total), min(bits, total)):
        flat[place // width] ^= np.uint8(1 << place % width)
