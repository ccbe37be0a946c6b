"""Images of another size, as products with matrices that are known beforehand."""

import jax
import jax.numpy as jnp
import numpy as np

_SHARPNESS = -0.75  # of the cubic kernel, as PyTorch has it; Keys, 1981, has -0.5


def resize(
    x: jax.Array, size: tuple[int, int], *, is_cubic: bool = False, keeps_corners: bool = False
) -> jax.Array:
    """x [B, H, W, C] -> [B, *size, C], between two neighbours of each axis or four if cubic.

    With `keeps_corners`, the middles of the outermost pixels stay where they are; else their outer
    borders do.
    """
    for axis, length in enumerate(size, start=1):
        if x.shape[axis] != length:
            matrix = shares(x.shape[axis], length, is_cubic=is_cubic, keeps_corners=keeps_corners)
            product = jnp.tensordot(matrix.astype(x.dtype), x, axes=(1, axis))
            x = jnp.moveaxis(product, 0, axis)
    return x


def shares(old: int, new: int, *, is_cubic: bool, keeps_corners: bool) -> np.ndarray:
    """What each of the `old` pixels of a row contributes to each of the `new` ones: [new, old]."""
    places = np.arange(new)
    if keeps_corners:
        source = places * ((old - 1) / max(new - 1, 1))
    else:
        source = (places + 0.5) * (old / new) - 0.5
    first = np.floor(source).astype(int)
    taps = first[:, None] + (np.arange(-1, 3) if is_cubic else np.arange(2))
    distances = np.abs(source[:, None] - taps)
    matrix = np.zeros((new, old), np.float32)
    weights = _cubic(distances) if is_cubic else 1 - distances
    np.add.at(matrix, (places[:, None], np.clip(taps, 0, old - 1)), weights)
    return matrix


def _cubic(distance: np.ndarray) -> np.ndarray:
    a = _SHARPNESS
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, far)
