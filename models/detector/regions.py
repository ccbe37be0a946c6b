"""Regions of feature maps at one size: He et al., "Mask R-CNN", 2017 (RoIAlign), on the levels of a
feature pyramid.

Axis names: B batch, H and W of a level, C channels, R regions, S places along a side of a region.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from models.detector.boxes import areas

_SAMPLES = 2  # along each side of a place
_USUAL_SIDE, _USUAL_LEVEL = 224, 2  # the level of regions of that side, counted from the finest
_ROUNDING = 1e-6


def pooled(
    levels: list[jax.Array], boxes: jax.Array, image: tuple[int, int], size: int
) -> jax.Array:
    """The regions boxes [B, R, 4] of images of that height and width, each of the level that suits
    its size: [B, R, C, size, size]."""
    sides = jnp.sqrt(areas(boxes))
    level = jnp.floor(_USUAL_LEVEL + jnp.log2(sides / _USUAL_SIDE) + _ROUNDING)
    level = jnp.clip(level, 0, len(levels) - 1)
    result = 0.0
    for number, features in enumerate(levels):
        scale = 2.0 ** round(math.log2(features.shape[1] / image[0]))
        regions = jax.vmap(partial(_regions, scale=scale, size=size))(features, boxes)
        chosen = (level == number)[..., None, None, None]
        result = result + jnp.where(chosen, regions, 0)
    return jnp.asarray(result)


def _regions(features: jax.Array, boxes: jax.Array, *, scale: float, size: int) -> jax.Array:
    """features [H, W, C], boxes [R, 4] -> [R, C, size, size]: the mean of several samples between
    the middles of places, as a product with what each row and column contributes."""
    begin = boxes[:, :2] * scale
    side = jnp.maximum(boxes[:, 2:] * scale - begin, 1.0)
    height, width, _ = features.shape
    across = _shares(begin[:, 0], side[:, 0], width, size)
    down = _shares(begin[:, 1], side[:, 1], height, size)
    return jnp.einsum("rsh,hwc,rtw->rcst", down, features.astype(jnp.float32), across).astype(
        features.dtype
    )


def _shares(begin: jax.Array, side: jax.Array, length: int, size: int) -> jax.Array:
    """What each of `length` rows contributes to each of `size` places of a region: [R, S, length].
    Samples more than one row outside are zero."""
    steps = (jnp.arange(size * _SAMPLES) + 0.5) / (size * _SAMPLES)
    at = begin[:, None] + side[:, None] * steps
    inside = (at >= -1) & (at <= length)
    at = jnp.clip(at, 0, length - 1)
    near = jnp.maximum(1 - jnp.abs(at[..., None] - jnp.arange(length)), 0)
    near = jnp.where(inside[..., None], near, 0)
    return near.reshape(len(begin), size, _SAMPLES, length).mean(axis=2)
