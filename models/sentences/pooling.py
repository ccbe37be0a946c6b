"""How the vectors of a text's tokens become its own.

Axis names: R texts, T tokens, D model width. Padding stands behind a text.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from models.sentences.config import CLS, LAST, MAX, MEAN, MEAN_SQRT, WEIGHTED


def _cls(x: jax.Array, real: jax.Array) -> jax.Array:
    return x[:, 0]


def _max(x: jax.Array, real: jax.Array) -> jax.Array:
    return jnp.max(jnp.where(real[..., None], x, -jnp.inf), axis=1)


def _sums(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weighted vectors, added up [R, D], and their weights [R, 1]."""
    return jnp.einsum("rtd,rt->rd", x, weights), jnp.sum(weights, axis=1)[:, None]


def _mean(x: jax.Array, real: jax.Array) -> jax.Array:
    total, count = _sums(x, real.astype(x.dtype))
    return total / jnp.maximum(count, 1)


def _mean_sqrt(x: jax.Array, real: jax.Array) -> jax.Array:
    total, count = _sums(x, real.astype(x.dtype))
    return total / jnp.sqrt(jnp.maximum(count, 1))


def _pool_weighted(x: jax.Array, real: jax.Array) -> jax.Array:
    """Later tokens count more (Muennighoff, "SGPT", 2022)."""
    total, weight = _sums(x, real * jnp.arange(1, x.shape[1] + 1, dtype=x.dtype))
    return total / jnp.maximum(weight, 1)


def _last(x: jax.Array, real: jax.Array) -> jax.Array:
    place = jnp.maximum(jnp.sum(real, axis=1) - 1, 0)[:, None, None]
    return jnp.take_along_axis(x, place, axis=1)[:, 0]


POOL: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    CLS: _cls,
    MAX: _max,
    MEAN: _mean,
    MEAN_SQRT: _mean_sqrt,
    WEIGHTED: _pool_weighted,
    LAST: _last,
}
"""Pooling -> vectors [R, D] of those of tokens [R, T, D] and of what is no padding [R, T]."""


def of_words(x: jax.Array, real: jax.Array, *, adds: bool, twice: bool) -> jax.Array:
    """How much each word counts [R, V] by its scores at tokens x [R, T, V]; see `Splade`."""
    scores = jnp.log1p(jnp.maximum(x, 0) * real[..., None])
    scores = jnp.log1p(scores) if twice else scores
    return jnp.sum(scores, axis=1) if adds else jnp.max(scores, axis=1)
