"""Masks of a vocabulary as bits, the form in which programs take them."""

import numpy as np


def as_bits(allowed: np.ndarray) -> np.ndarray:
    """Truth values [..., V] as bits, the lowest first: uint32 [..., ceil(V / 32)]."""
    *rows, size = allowed.shape
    padded = np.zeros((*rows, -(-size // 32) * 32), np.uint8)
    padded[..., :size] = allowed
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)
