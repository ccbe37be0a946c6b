"""The meanings of the custom calls ResizeNearest, its gradient, and ResizeBilinear.

They have the names and the form of XLA's custom calls for TPUs, which are TensorFlow's operators
ResizeNearestNeighbor and ResizeBilinear: images are in NHWC order, the sizes are those of operand
and result, and backend_config is two digits, align_corners and half_pixel_centers. Positions of the
result's pixels in the image are computed exactly, while TensorFlow computes them in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.legalize.call import Call, Function, wide

_TOP_LEFT, _HALF_PIXEL, _CORNERS = "00", "01", "10"

_POSITIONS: Mapping[str, Callable[[np.ndarray, int, int], tuple[np.ndarray, int]]] = {
    _TOP_LEFT: lambda i, image, result: (i * image, result),
    _HALF_PIXEL: lambda i, image, result: ((2 * i + 1) * image - result, 2 * result),
    _CORNERS: lambda i, image, result: (i * (image - 1), max(result - 1, 1)),
}
"""Mode -> positions of the result's pixels i in the image, as numerators and a denominator."""


def _mode(call: Call) -> str:
    if call.config not in _POSITIONS:
        raise call.bad_config(
            "the digits align_corners and half_pixel_centers, 00, 01 or 10, as a text"
        )
    return call.config


def _sides(call: Call) -> list[tuple[int, int]]:
    """(size in the operand, size in the result) of height and width."""
    operand, result = call.expect_operands("images")[0].shape, call.results[0].shape
    if len(operand) != 4 or len(result) != 4 or 0 in operand or 0 in result:
        raise UnsupportedProgramError(
            f"resizes {operand} to {result}; both must be batch, height, width, channels, not empty"
        )
    return [(operand[side], result[side]) for side in (1, 2)]


def _nearest(mode: str, image: int, result: int) -> np.ndarray:
    """The index of the nearest pixel of the image for every pixel of the result."""
    numerator, denominator = _POSITIONS[mode](np.arange(result), image, result)
    if mode != _TOP_LEFT:  # rounded, halves up; else cut
        numerator, denominator = 2 * numerator + denominator, 2 * denominator
    return np.clip(numerator // denominator, 0, image - 1).astype(np.int32)


def _taken(images: jax.Array, pixels: np.ndarray, dimension: int) -> jax.Array:
    return jnp.take(images, pixels, dimension, mode="clip")


def nearest(call: Call) -> Function:
    """(images): every pixel of the result is the nearest one of the image."""
    mode = _mode(call)
    rows, columns = (_nearest(mode, image, result) for image, result in _sides(call))
    return lambda images: _taken(_taken(images, rows, 1), columns, 2)


def nearest_gradient(call: Call) -> Function:
    """(gradient of the result): for every pixel of the image, the sum over its copies."""
    call.expect_floats()
    mode, sides = _mode(call), _sides(call)
    rows, columns = (_nearest(mode, image, result) for result, image in sides)
    height, width = (image for _, image in sides)

    def function(gradient: jax.Array) -> jax.Array:
        batch, _, _, channels = gradient.shape
        zeros = jnp.zeros((batch, height, width, channels), wide(gradient).dtype)
        return zeros.at[:, rows[:, None], columns[None, :]].add(wide(gradient))

    return function


def bilinear(call: Call) -> Function:
    """(images): interpolated linearly in both directions; beyond the border, the border's pixel."""
    call.expect_floats()
    mode = _mode(call)
    sides = _sides(call)

    def function(images: jax.Array) -> jax.Array:
        values = wide(images)
        for dimension, (image, result) in reversed(list(enumerate(sides, 1))):
            values = _interpolated(values, dimension, mode, image, result)
        return values

    return function


def _interpolated(
    values: jax.Array, dimension: int, mode: str, image: int, result: int
) -> jax.Array:
    numerator, denominator = _POSITIONS[mode](np.arange(result), image, result)
    first = numerator // denominator
    before, after = (
        _taken(values, np.clip(pixels, 0, image - 1).astype(np.int32), dimension)
        for pixels in (first, first + 1)
    )
    shape = [result if side == dimension else 1 for side in range(values.ndim)]
    fraction = (numerator % denominator / denominator).astype(values.dtype).reshape(shape)
    return before + (after - before) * fraction
