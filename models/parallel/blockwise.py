"""Attention to one block of keys at a time: sums of the softmax, and their gradients.

Dao et al., "FlashAttention", 2022. Axis names: B batch, K key-value heads, C positions, G query
heads of each key-value head, R = G·C, S keys, H head_dim.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

LOWEST = jnp.finfo(jnp.float32).min


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """score = cap(scale · query · key), where cap(x) = softcap · tanh(x / softcap)."""

    scale: float
    softcap: float | None = None

    def scores(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """The scores FP32 [B, K, R, S] of queries [B, K, R, H] and keys [B, K, S, H]."""
        scores = _product("bkrh,bksh->bkrs", queries, keys) * self.scale
        return scores if self.softcap is None else self.softcap * jnp.tanh(scores / self.softcap)

    def slope(self, scores: jax.Array) -> jax.Array | float:
        """d score / d (query · key), of the scores."""
        return self.scale * (1 if self.softcap is None else 1 - (scores / self.softcap) ** 2)


class Sums(NamedTuple):
    """The softmax of rows so far, FP32."""

    values: jax.Array  # [B, K, R, H], Σ weight · value
    weights: jax.Array  # [B, K, R, 1], Σ weight
    largest: jax.Array  # [B, K, R, 1], the score whose weight is 1

    def logs(self) -> jax.Array:
        """log Σ exp(score) [B, K, R, 1]."""
        return self.largest + jnp.log(self.weights)


def no_sums(queries: jax.Array) -> Sums:
    """The sums of queries [..., R, H] that have seen nothing yet."""
    column = (*queries.shape[:-1], 1)
    return Sums(
        jnp.zeros(queries.shape, jnp.float32),
        jnp.zeros(column, jnp.float32),
        jnp.full(column, LOWEST, jnp.float32),
    )


def add(
    scoring: Scoring,
    sums: Sums,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
) -> Sums:
    """The sums with another block: queries [B, K, R, H], keys and values [B, K, S, H], mask
    [B or 1, C, S], True where a query may look."""
    scores = scoring.scores(queries, keys)
    seen = _rows(mask, scores)
    if seen is not None:
        scores = jnp.where(seen, scores, LOWEST)
    largest = jnp.maximum(sums.largest, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - largest)
    if seen is not None:  # a row that sees nothing of this block has weights of 1 so far
        weights = jnp.where(seen, weights, 0)
    shrink = jnp.exp(sums.largest - largest)
    products = _product("bkrs,bksh->bkrh", weights.astype(values.dtype), values)
    return Sums(
        sums.values * shrink + products,
        sums.weights * shrink + jnp.sum(weights, axis=-1, keepdims=True),
        largest,
    )


class Rows(NamedTuple):
    """What the backward pass knows of rows of scores."""

    queries: jax.Array  # [B, K, R, H]
    given: jax.Array  # [B, K, R, H], the gradient of their results
    share: jax.Array  # FP32 [B, K, R, 1], Σ result · given
    logs: jax.Array  # FP32 [B, K, R, 1], of `Sums`


def gradients(
    scoring: Scoring, rows: Rows, keys: jax.Array, values: jax.Array, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What a block adds to the gradients of queries, keys and values, FP32."""
    scores = scoring.scores(rows.queries, keys)
    weights = jnp.exp(scores - rows.logs)
    seen = _rows(mask, scores)
    if seen is not None:
        weights = jnp.where(seen, weights, 0)
    of_values = _product("bkrs,bkrh->bksh", weights.astype(values.dtype), rows.given)
    of_weights = _product("bkrh,bksh->bkrs", rows.given, values)
    of_scores = weights * (of_weights - rows.share) * scoring.slope(scores)
    of_scores = of_scores.astype(keys.dtype)
    of_queries = _product("bkrs,bksh->bkrh", of_scores, keys)
    return of_queries, _product("bkrs,bkrh->bksh", of_scores, rows.queries), of_values


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _rows(mask: jax.Array | None, scores: jax.Array) -> jax.Array | None:
    """The mask [B or 1, C, S] of all query heads [B or 1, 1, R, S]."""
    if mask is None:
        return None
    return jnp.tile(mask, (1, scores.shape[2] // mask.shape[1], 1))[:, None]
