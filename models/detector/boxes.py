"""Boxes: their overlap, what is left of those that overlap, and how networks describe them.

A box is its left, upper, right and lower edge, in pixels. Axis names: N boxes, P places of a level.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

_PART = 8192
_LONGEST = math.log(1000 / 16)  # of the logarithm of a ratio of sides, which `with_steps` takes


def overlaps(box: jax.Array, boxes: jax.Array) -> jax.Array:
    """The common area of a box [4] and others [N, 4], over the area that they cover: [N]."""
    begin, end = jnp.maximum(box[:2], boxes[:, :2]), jnp.minimum(box[2:], boxes[:, 2:])
    common = jnp.prod(jnp.maximum(end - begin, 0), axis=-1)
    return common / (areas(box) + areas(boxes) - common)


def areas(boxes: jax.Array) -> jax.Array:
    """The areas [...] of boxes [..., 4]."""
    return jnp.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)


def suppressed(boxes: jax.Array, groups: jax.Array, real: jax.Array, most: ArrayLike) -> jax.Array:
    """Non-maximum suppression of boxes [N, 4] that lie by falling scores: which are dropped, as
    they overlap an earlier one of the same group by more than `most`, or are not real: bool [N].

    All shapes are static: the boxes are taken one after the other.
    """
    numbers = jnp.arange(len(boxes))

    def take(i: jax.Array, dropped: jax.Array) -> jax.Array:
        rivals = (overlaps(boxes[i], boxes) > most) & (groups == groups[i]) & (numbers > i)
        return dropped | (rivals & ~dropped[i])

    return jax.lax.fori_loop(0, len(boxes), take, ~real)


def greatest(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The greatest of each row [..., N] in falling order and their numbers, [..., count] each: as
    `jax.lax.top_k`, of parts that a core sorts, and then of the best of these."""
    size = scores.shape[-1]
    if size <= _PART or 2 * count > _PART:
        return jax.lax.top_k(scores, count)
    parts = -(-size // _PART)
    idle = [(0, 0)] * (scores.ndim - 1) + [(0, parts * _PART - size)]
    padded = jnp.pad(scores, idle, constant_values=-jnp.inf)
    best, numbers = jax.lax.top_k(padded.reshape(*scores.shape[:-1], parts, _PART), count)
    numbers += _PART * jnp.arange(parts, dtype=numbers.dtype)[:, None]
    rows = (*scores.shape[:-1], parts * count)
    best, places = greatest(best.reshape(rows), count)
    return best, jnp.take_along_axis(numbers.reshape(rows), places, axis=-1)


def with_steps(boxes: jax.Array, steps: jax.Array, weights: tuple[float, float]) -> jax.Array:
    """Boxes [..., 4] after `steps` [..., 4] of their middles, in sides, and of the logarithms of
    their sides, both divided by weights. Girshick et al., "Rich Feature Hierarchies", 2014."""
    sides = boxes[..., 2:] - boxes[..., :2]
    middles = boxes[..., :2] + sides / 2 + steps[..., :2] / weights[0] * sides
    halves = sides * jnp.exp(jnp.minimum(steps[..., 2:] / weights[1], _LONGEST)) / 2
    return jnp.concatenate([middles - halves, middles + halves], axis=-1)


def clipped(boxes: jax.Array, height: int, width: int) -> jax.Array:
    """Boxes [..., 4] within an image."""
    return jnp.clip(boxes, 0, jnp.array([width, height, width, height], boxes.dtype))


def longer_than(boxes: jax.Array, side: float) -> jax.Array:
    """Whether both sides of boxes [..., 4] are at least that long: [...]."""
    return jnp.all(boxes[..., 2:] - boxes[..., :2] >= side, axis=-1)


def anchors(
    level: tuple[int, int], image: tuple[int, int], size: int, ratios: tuple[float, ...]
) -> np.ndarray:
    """The anchors of all places of a level, FP32 [P · ratios, 4]: boxes around a place whose sides
    are `size` times the root of a ratio, and its inverse. Ren et al., "Faster R-CNN", 2015."""
    roots = np.sqrt(np.array(ratios, np.float32))
    halves = np.stack([size / roots, size * roots], axis=-1) / 2  # width, height
    around = np.round(np.concatenate([-halves, halves], axis=-1))
    steps = [side // places for side, places in zip(image, level, strict=True)]
    y, x = np.meshgrid(
        *(np.arange(n) * s for n, s in zip(level, steps, strict=True)), indexing="ij"
    )
    places = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    return (places + around).reshape(-1, 4).astype(np.float32)
