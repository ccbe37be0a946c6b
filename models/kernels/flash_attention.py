"""Causal attention without its matrix of scores: Dao et al., "FlashAttention", 2022.

Axis names: N query heads of all texts, K key-value heads of all texts, T positions, H head_dim.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.flash_attention_backward import flash_attention_gradients
from models.kernels.tiles import ROWS, below_the_diagonal, tile, transposed

BLOCK = 512
"""Keys of a block: the FP32 scores of a query that one bank of PSUM holds."""

MOST_WIDTH = 128
"""Of a head: the rows of the Tensor engine, which sums over it."""


@nki.jit
def flash_attention_kernel(query: Any, key: Any, value: Any, scale: float) -> tuple[Any, Any]:
    """softmax(scale · query · keyᵀ) · value, of each position over itself and those before it.

    query [N, T, H], key and value [K, T, H] -> the attended values [N, T, H] of the dtype of the
    queries, and the logarithm of each softmax's sum, FP32 [N, T, 1], which the gradient needs.
    T is a multiple of 128, H at most 128; query head n looks at key-value head n // (N / K).

    A tile of 128 queries meets blocks of up to 512 keys and keeps the largest score so far and the
    sums in FP32; where a block has a larger score, what was summed before is scaled down.
    """
    heads, length, width = query.shape
    kv_heads = key.shape[0]
    attended = nl.ndarray(query.shape, dtype=query.dtype, buffer=nl.shared_hbm)
    statistics = nl.ndarray((heads, length, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for kv_head in nl.affine_range(kv_heads):
        keys = tile((width, length), key.dtype)
        values = tile((ROWS, length // ROWS, width), value.dtype)
        for part in nl.affine_range(length // ROWS):
            rows = nl.ds(part * ROWS, ROWS)
            transposed(keys[:, rows], key[kv_head, rows])
            nisa.dma_copy(dst=values[:, part], src=value[kv_head, rows])
        for group in nl.affine_range(heads // kv_heads):
            head = kv_head * (heads // kv_heads) + group
            queries = tile((width, length), query.dtype)
            for part in nl.affine_range(length // ROWS):
                rows = nl.ds(part * ROWS, ROWS)
                transposed(queries[:, rows], query[head, rows])
            for part in nl.static_range(length // ROWS):
                rows = nl.ds(part * ROWS, ROWS)
                _attend(
                    attended[head, rows], statistics[head, rows], queries[:, rows],
                    keys, values, part * ROWS, scale,
                )  # fmt: skip
    return attended, statistics


def _attend(
    attended: Any, statistics: Any, queries: Any, keys: Any, values: Any, start: int, scale: float
) -> None:
    """A tile of queries that begins at `start`: attended [128, H] and statistics [128, 1] in HBM,
    queries [H, 128], keys [H, T] and values [128, T / 128, H] in SBUF."""
    width = queries.shape[0]
    summed, total = tile((ROWS, width)), tile((ROWS, 1))
    lowest = None  # minus the largest score so far
    for first in nl.static_range(0, start + ROWS, BLOCK):
        size = min(BLOCK, start + ROWS - first)
        scores = _scores(queries, keys[:, nl.ds(first, size)], start - first)
        lowest_here, before = tile((ROWS, 1)), lowest
        nisa.tensor_reduce(lowest_here, nl.maximum, scores, axis=1, negate=True)
        nisa.tensor_scalar(lowest_here, lowest_here, nl.multiply, scale)
        if before is not None:
            nisa.tensor_tensor(lowest_here, lowest_here, before, nl.minimum)
        lowest = lowest_here
        weights, total_here = tile(scores.shape, values.dtype), tile((ROWS, 1))
        nisa.activation_reduce(
            weights, nl.exp, scores, nl.add, total_here, bias=lowest, scale=scale
        )
        products = _weighted(weights, values, first // ROWS)
        if before is None:
            nisa.tensor_copy(summed, products)
            nisa.tensor_copy(total, total_here)
            continue
        shrunk = tile((ROWS, 1))  # exp(the largest before - the largest now)
        nisa.activation(shrunk, nl.exp, before, bias=lowest, scale=-1.0)
        nisa.scalar_tensor_tensor(summed, summed, nl.multiply, shrunk, nl.add, products)
        nisa.scalar_tensor_tensor(total, total, nl.multiply, shrunk, nl.add, total_here)
    logarithm, inverse, result = (
        tile((ROWS, 1)),
        tile((ROWS, 1)),
        tile(attended.shape, attended.dtype),
    )
    nisa.activation(logarithm, nl.log, total)
    nisa.tensor_tensor(logarithm, logarithm, lowest, nl.subtract)
    nisa.dma_copy(dst=statistics, src=logarithm)
    nisa.reciprocal(inverse, total)
    nisa.tensor_scalar(result, summed, nl.multiply, inverse)
    nisa.dma_copy(dst=attended, src=result)


def _scores(queries: Any, keys: Any, diagonal: int) -> Any:
    """query · key of [H, 128] and [H, S] -> [128, S]: in PSUM, or, where the block of keys reaches
    the queries' own positions, which begin at its key `diagonal`, in SBUF without what is later."""
    size = keys.shape[1]
    scores = tile((ROWS, size), buffer=nl.psum)
    nisa.nc_matmul(scores, queries, keys)
    if diagonal >= size:
        return scores
    seen = tile((ROWS, size))
    nisa.tensor_copy(seen, scores)
    own = seen[:, nl.ds(diagonal, ROWS)]
    below_the_diagonal(own, own, otherwise=-1e30)
    return seen


def _weighted(weights: Any, values: Any, first: int) -> Any:
    """weights [128, S] · the values from part `first` on, in PSUM [128, H]."""
    width, parts = values.shape[2], weights.shape[1] // ROWS
    products = tile((ROWS, width), buffer=nl.psum)
    for part in nl.static_range(parts):
        turned = tile((ROWS, ROWS), weights.dtype)
        transposed(turned, weights[:, nl.ds(part * ROWS, ROWS)])
        nisa.nc_matmul(products, turned, values[:, first + part], accumulate=part > 0)
    return products


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float | None = None
) -> jax.Array:
    """Causal attention: query [B, T, N, H], key and value [B, T, K, H] -> [B, T, N, H].

    Query head n looks at key-value head n // (N / K). The scale is 1 / sqrt(H) unless given. H is
    at most 128; any T: it is filled up to a multiple of 128. Kernels make the value and the
    gradients.
    """
    return _forward(query, key, value, scale)[0]


Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float | None
) -> tuple[jax.Array, Saved]:
    by_head = [heads_first(x) for x in (query, key, value)]
    attended, statistics = flash_attention_kernel(*by_head, _scale(query, scale))
    return heads_last(attended, query), (query, key, value, attended, statistics)


def _backward(
    scale: float | None, saved: Saved, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value, attended, statistics = saved
    of_attended = heads_first(gradient)
    # What the softmax takes from the gradient of each of its weights.
    taken = jnp.sum(
        of_attended.astype(jnp.float32) * attended.astype(jnp.float32), axis=-1, keepdims=True
    )
    by_head = [heads_first(x) for x in (query, key, value)]
    gradients = flash_attention_gradients(
        *by_head, of_attended, statistics, taken, _scale(query, scale)
    )
    of_query, of_key, of_value = (
        heads_last(x, like) for x, like in zip(gradients, (query, key, value), strict=True)
    )
    return of_query, of_key, of_value


flash_attention.defvjp(_forward, _backward)


def _scale(query: jax.Array, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def heads_first(x: jax.Array) -> jax.Array:
    """[B, T, N, H] -> [B · N, T', H], with zeros up to a multiple of 128 positions."""
    batch, length, heads, width = x.shape
    rows = x.transpose(0, 2, 1, 3).reshape(batch * heads, length, width)
    return jnp.pad(rows, ((0, 0), (0, -length % ROWS), (0, 0)))


def heads_last(rows: jax.Array, like: jax.Array) -> jax.Array:
    """The inverse of `heads_first`, for an array of the shape of `like`."""
    batch, length, heads, width = like.shape
    return rows[:, :length].reshape(batch, heads, length, width).transpose(0, 2, 1, 3)
