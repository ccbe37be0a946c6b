"""What backbones of images put out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class FeatureMap(NamedTuple):
    """The outputs of a backbone."""

    hidden: jax.Array  # [B, *places, C] of the last stage
    pooled: jax.Array  # [B, C] of the whole image


class ImageFeatures(NamedTuple):
    """The outputs of a transformer over patches."""

    # [B, T, D] in the order of the tokens, after the last norm unless that is of the mean alone
    hidden: jax.Array
    pooled: jax.Array | None  # [B, P], if the model has a pooler


def mean_of_places(x: jax.Array) -> jax.Array:
    """The mean of x [B, *places, C] over all places: [B, C], taken in FP32."""
    places = tuple(range(1, x.ndim - 1))
    return jnp.mean(x.astype(jnp.float32), axis=places).astype(x.dtype)
