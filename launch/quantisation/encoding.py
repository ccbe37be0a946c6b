"""The nearest numbers of a format: kernels [inputs, outputs] to numbers and scales."""

import ml_dtypes
import numpy as np

from launch.emulation import quantize_mx
from models.layers.narrow import LARGEST, Storage

RATIOS = np.linspace(1.0, 0.5, 21)
"""Shares of a block's largest magnitude that stand for the largest number of the format."""


def encode(
    kernel: np.ndarray, storage: Storage, importance: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [inputs, outputs] and scales [I, O] of a kernel [inputs, outputs].

    With an importance [inputs], scales are those of RATIOS with the least sum of importance ·
    error²; without one, nothing is clipped. Scales of powers of two follow from the largest
    magnitude alone (OCP Microscaling Formats 1.0, 6.3).
    """
    kernel = kernel.astype(np.float32)
    if storage.exponents:
        return quantize_mx(kernel, storage.dtype)
    rows, columns = storage.scale_shape(*kernel.shape)
    blocks = kernel.reshape(rows, kernel.shape[0] // rows, columns, -1)
    amax = np.abs(blocks).max(axis=(1, 3), keepdims=True)
    full = np.where(amax > 0, amax, LARGEST[storage.dtype]) / np.float32(LARGEST[storage.dtype])
    scale, numbers = full, _nearest(blocks / full, storage.dtype)
    if importance is not None:
        weights = importance.astype(np.float32).reshape(rows, -1, 1, 1)
        least = _error(blocks, numbers, scale, weights)
        for ratio in RATIOS[1:]:
            other = (full * ratio).astype(np.float32)
            candidate = _nearest(blocks / other, storage.dtype)
            error = _error(blocks, candidate, other, weights)
            scale = np.where(error < least, other, scale)
            numbers = np.where(error < least, candidate, numbers)
            least = np.minimum(error, least)
    return numbers.reshape(kernel.shape), scale[:, 0, :, 0].astype(np.float32)


def _nearest(scaled: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to nearest even; what exceeds the range becomes the largest number in it."""
    largest = LARGEST[dtype]
    clipped = np.clip(scaled, -largest, largest)
    if dtype == "int8":
        return np.rint(clipped).astype(np.int8)
    return clipped.astype(getattr(ml_dtypes, dtype))


def _error(
    blocks: np.ndarray, numbers: np.ndarray, scale: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    difference = numbers.astype(np.float32) * scale - blocks
    return np.sum(weights * difference**2, axis=(1, 3), keepdims=True)
