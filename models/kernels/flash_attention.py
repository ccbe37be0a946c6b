"""Causal attention without its matrix of scores: Dao et al., "FlashAttention", 2022.

Axis names: N query heads of all texts, K key-value heads of all texts, T positions, H head_dim.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part
from models.kernels.flash_attention_backward import flash_attention_gradients
from models.kernels.heads import BLOCK, Later, columns_of_head, rows_of_head, score
from models.kernels.tiles import ROWS, Ring, extent, in_stages, parts, rows_from, tile

MOST_WIDTH = 128
"""The greatest width of a head: the rows of the Tensor engine, which sums over it."""

MOST_BYTES = 8192
"""The bytes of one number of all positions: what the gradients keep of a head must fit in SBUF."""


@nki.jit
def flash_attention_kernel(query: Any, key: Any, value: Any, scale: float) -> tuple[Any, Any]:
    """softmax(scale · query · keyᵀ) · value, of each position over itself and those before it.

    query [N, T, H], key and value [K, T, H] -> the attended values [N, T, H] of the dtype of the
    queries, and the logarithm of each softmax's sum, FP32 [N, T, 1], which the gradient needs.
    T is a multiple of 128, H at most 128; query head n looks at key-value head n // (N / K).

    Programs share the query heads. Tiles of 128 queries meet blocks of up to 512 keys and keep the
    largest score so far and the sums in FP32; where a block has a larger score, what was summed
    before is scaled down.

    The work on a tile of queries and a block of keys has four stages, which are interleaved with
    those of the next pairs: while the Vector engine looks for the largest scores of one pair, the
    Tensor engine computes the scores of another.
    """
    heads, length, _ = query.shape
    kv_heads = key.shape[0]
    attended = nl.ndarray(query.shape, dtype=query.dtype, buffer=nl.shared_hbm)
    statistics = nl.ndarray((heads, length, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    later = Later(query.dtype)
    group, own = heads // kv_heads, own_part(heads)
    for kv_head in nl.affine_range(own.start // group, -(-own.stop // group)):
        first = kv_head * group
        keys, values = columns_of_head(key[kv_head]), rows_of_head(value[kv_head])
        for head in nl.affine_range(max(first, own.start), min(first + group, own.stop)):
            sums, queries = _Sums(length), columns_of_head(query[head])
            work = _Work(keys, values, later, attended[head])
            meetings = [_Meeting(*pair, work) for pair in _pairs(queries, sums, scale)]
            in_stages(
                meetings,
                (0, _Meeting.score),
                (4, _Meeting.add),
                (1, _Meeting.weigh),
                (2, _Meeting.turn),
            )
            sums.store(statistics[head])
    return attended, statistics


class _Work:
    """What the meetings of a head share: keys [H, T], values [128, T / 128, H], the place of the
    result [T, H], and tiles, of which three banks of PSUM are for scores, four for what follows."""

    def __init__(self, keys: Any, values: Any, later: Later, attended: Any) -> None:
        self.keys, self.values, self.later, self.attended = keys, values, later, attended
        dtype, turned = values.dtype, (ROWS, BLOCK // ROWS, ROWS)
        self.scores = Ring(3, (ROWS, BLOCK), buffer=nl.psum)
        self.weights = Ring(3, (ROWS, BLOCK), dtype)
        self.turned_in_psum, self.turned = Ring(2, turned, dtype, nl.psum), Ring(4, turned, dtype)
        self.products = Ring(2, (ROWS, values.shape[2]), buffer=nl.psum)


class _Sums:
    """The statistics of the softmax of every query of a head, as columns of 128: minus the largest
    score so far, and the sum."""

    def __init__(self, length: int) -> None:
        self.lowest, self.total = (tile((ROWS, length // ROWS)) for _ in range(2))

    def store(self, statistics: Any) -> None:
        """Stores the logarithms of the sums in statistics [T, 1]. All at once: the Scalar engine
        takes long to turn from exp to log and back."""
        logarithms = tile(self.total.shape)
        nisa.activation(logarithms, nl.log, self.total)
        nisa.tensor_tensor(logarithms, logarithms, self.lowest, nl.subtract)
        for number, rows in enumerate(parts(statistics.shape[0])):
            nisa.dma_copy(dst=statistics[rows], src=logarithms[:, nl.ds(number, 1)])


class _Queries:
    """128 queries [H, 128], and what of their softmax is known."""

    def __init__(self, columns: Any, rows: slice, sums: _Sums, scale: float) -> None:
        self.columns, self.rows, self.scale = columns[:, rows], rows, scale
        own = nl.ds(rows.start // ROWS, 1)
        self.lowest, self.total = sums.lowest[:, own], sums.total[:, own]
        self.summed = tile((ROWS, columns.shape[0]))

    def store(self, attended: Any) -> None:
        """Stores the quotient of the sums in their rows of attended [T, H]."""
        result, inverse = tile(self.summed.shape, attended.dtype), tile((ROWS, 1))
        nisa.reciprocal(inverse, self.total)
        nisa.tensor_scalar(result, self.summed, nl.multiply, inverse)
        nisa.dma_copy(dst=attended[self.rows], src=result)


def _pairs(columns: Any, sums: _Sums, scale: float) -> Iterator[tuple[_Queries, slice]]:
    """Queries of a head [H, T] and the blocks of keys that they meet, in such an order that the
    next pair seldom has the same queries."""
    length = columns.shape[1]
    for span in parts(length, BLOCK):
        tiles = [rows_from(first, length) for first in range(span.start, span.stop, ROWS)]
        members = [_Queries(columns, rows, sums, scale) for rows in tiles]
        for block in parts(span.stop, BLOCK):
            for member in members:
                yield member, block


class _Meeting:
    """The attention of 128 queries to a block of keys, as far as they see it."""

    def __init__(self, queries: _Queries, block: slice, work: _Work) -> None:
        self.queries, self.work = queries, work
        self.block = slice(block.start, min(block.stop, queries.rows.stop))
        self.is_first, self.is_last = block.start == 0, block.stop >= queries.rows.stop
        self.total, self.shrunk = tile((ROWS, 1)), tile((ROWS, 1))
        self.scores: Any = None
        self.weights: Any = None
        self.turned: Any = None

    def score(self) -> None:
        """query · key: FP32 scores [128, S] in PSUM."""
        queries, work = self.queries, self.work
        self.scores = work.scores.take()[:, nl.ds(0, extent(self.block))]
        score(self.scores, queries.columns, work.keys, self.block, queries.rows, work.later)

    def weigh(self) -> None:
        """exp(scale · score - the largest so far): weights [128, S], and their sums."""
        queries, scores, largest = self.queries, self.scores, tile((ROWS, 1))
        lowest = queries.lowest
        nisa.tensor_reduce(largest, nl.maximum, scores, axis=1, negate=True)
        if self.is_first:
            nisa.tensor_scalar(lowest, largest, nl.multiply, queries.scale)
        else:
            before = tile((ROWS, 1))
            nisa.tensor_copy(before, lowest, engine=nisa.engine.gpsimd)
            nisa.scalar_tensor_tensor(
                lowest, largest, nl.multiply, queries.scale, nl.minimum, before
            )
            # exp(the largest before - the largest now)
            nisa.activation(self.shrunk, nl.exp, before, bias=lowest, scale=-1.0)
        self.weights = self.work.weights.take()[:, nl.ds(0, scores.shape[1])]
        nisa.activation_reduce(
            self.weights, nl.exp, scores, nl.add, self.total, bias=lowest, scale=queries.scale
        )

    def turn(self) -> None:
        """The transposed parts of the weights, [128, S / 128, 128]."""
        count = nl.ds(0, self.weights.shape[1] // ROWS)
        in_psum = self.work.turned_in_psum.take()[:, count]
        self.turned = self.work.turned.take()[:, count]
        for number, part in enumerate(parts(self.weights.shape[1])):
            nisa.nc_transpose(in_psum[:, number], self.weights[:, part])
        nisa.tensor_copy(self.turned, in_psum)

    def add(self) -> None:
        """Adds weights · values, and the weights, to the sums; after the last block, stores."""
        products, first = self.work.products.take(), self.block.start // ROWS
        for part in nl.static_range(self.turned.shape[1]):
            value = self.work.values[:, first + part]
            nisa.nc_matmul(products, self.turned[:, part], value, accumulate=part > 0)
        for sums, new in ((self.queries.summed, products), (self.queries.total, self.total)):
            if self.is_first:
                nisa.tensor_copy(sums, new)
            else:
                nisa.scalar_tensor_tensor(sums, sums, nl.multiply, self.shrunk, nl.add, new)
        if self.is_last:
            self.queries.store(self.work.attended)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float | None = None
) -> jax.Array:
    """Causal attention: query [B, T, N, H], key and value [B, T, K, H] -> [B, T, N, H].

    Query head n looks at key-value head n // (N / K). The scale is 1 / sqrt(H) unless given. H is
    at most 128; any T of at most `MOST_BYTES`: it is filled up to a multiple of 128. Kernels make
    the value and the gradients.
    """
    return _forward(query, key, value, scale)[0]


Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float | None
) -> tuple[jax.Array, Saved]:
    by_head = [heads_first(x) for x in (query, key, value)]
    kernel = on_cores(flash_attention_kernel, len(by_head[0]))
    attended, statistics = kernel(*by_head, _scale(query, scale))
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
    kernel = on_cores(flash_attention_gradients, len(by_head[1]))
    gradients = kernel(*by_head, of_attended, statistics, taken, _scale(query, scale))
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
