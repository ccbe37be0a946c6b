"""Images cut into square windows."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Image = TypeVar("Image", jax.Array, np.ndarray)


def padded(x: jax.Array, window: int) -> jax.Array:
    """x [B, H, W, C] with zeros below and to the right, so that windows fill it."""
    below, right = (-size % window for size in x.shape[1:3])
    return jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0))) if below or right else x


def windows(x: Image, window: int) -> Image:
    """The windows of x [B, H, W, C]: [B, rows, columns, window, window, C]."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // window, window, width // window, window, channels)
    return x.swapaxes(2, 3)


def joined(x: Image) -> Image:
    """The image of windows, the inverse of `windows`."""
    batch, rows, columns, window, _, channels = x.shape
    return x.swapaxes(2, 3).reshape(batch, rows * window, columns * window, channels)
