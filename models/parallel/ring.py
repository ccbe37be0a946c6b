"""Ring attention: a core keeps its queries, while keys and values travel from core to core.

Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023. Axis
names as in `blockwise`; T positions of a core, in P parts of C that lie beside each other in the
text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from models.layers.masks import causal_mask
from models.parallel.blockwise import Rows, Scoring, Sums, add, gradients, no_sums

Tree = TypeVar("Tree")


@dataclass(frozen=True, kw_only=True)
class Ring:
    """The cores of one mesh axis.

    With `causal`, positions lie in the order of `order.balanced`; a query then sees itself and
    what is before it or, with `window`, the window − 1 positions before it. Without, it sees all.
    """

    axis: str
    size: int
    causal: bool = True
    window: int | None = None

    @property
    def parts(self) -> int:
        """P: a core has a chunk of the text's first half and one of its second."""
        return 2 if self.causal else 1

    def pass_on(self, tree: Tree) -> Tree:
        """The values of the previous core in the ring."""
        pairs = [(core, (core + 1) % self.size) for core in range(self.size)]
        received: Tree = jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, pairs), tree)
        return received

    def slots(self, core: jax.Array, part: Any, length: int) -> jax.Array:
        """The positions [C] of a part of a core."""
        chunk = jnp.where(part == 0, core, 2 * self.size - 1 - core)
        return chunk * length + jnp.arange(length)


class Block(NamedTuple):
    """A core's keys and values, which travel."""

    keys: jax.Array  # [P, B, K, C, H]
    values: jax.Array  # [P, B, K, C, H]
    segments: jax.Array | None  # [P, B, C]


class Pair(NamedTuple):
    """A part of the queries that sees a part of a block."""

    queries: Any  # number of the part: int or traced [].
    block: Any
    diagonal: bool = False  # the same positions: a query does not see all


class Visit(NamedTuple):
    """A block of `source` at the core `rank`."""

    ring: Ring
    rank: jax.Array
    source: jax.Array
    at_home: bool

    def pairs(self) -> tuple[Pair, ...]:
        """Parts that see each other: as much work for each core. The late queries of a core see
        the early keys of all; and its early queries the early keys of cores before it, or its late
        ones the late keys of cores behind it."""
        if not self.ring.causal:
            return (Pair(0, 0),)
        if self.at_home:
            return (Pair(0, 0, diagonal=True), Pair(1, 0), Pair(1, 1, diagonal=True))
        same = jnp.where(self.source < self.rank, 0, 1)
        return (Pair(1, 0), Pair(same, same))

    def mask(self, pair: Pair, own: Block, block: Block) -> jax.Array | None:
        """[B or 1, C, C], True where a query sees a key; None where each sees all."""
        mask, length = None, block.keys.shape[3]
        if pair.diagonal or self.ring.window is not None:
            queries = self.ring.slots(self.rank, pair.queries, length)
            keys = self.ring.slots(self.source, pair.block, length)
            mask = causal_mask(queries, keys, window=self.ring.window)[None]
        if own.segments is None or block.segments is None:
            return mask
        of_queries, of_keys = _at(own.segments, pair.queries), _at(block.segments, pair.block)
        same = of_queries[:, :, None] == of_keys[:, None, :]
        return same if mask is None else mask & same


def ring_attention(
    ring: Ring,
    scoring: Scoring,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    segments: jax.Array | None = None,
) -> jax.Array:
    """A core's part of softmax(score(query, keys)) · values, within a `jax.shard_map`.

    query [B, T, N, H], keys and values [B, T, K, H] -> [B, T, N, H]; T is a multiple of P. With
    segments [B or 1, T], a query sees keys of its own number only.
    """
    batch, length, _, width = query.shape
    split = (batch, ring.parts, length // ring.parts)
    grouped = query.reshape(*split, keys.shape[2], -1, width).transpose(1, 0, 3, 4, 2, 5)
    keys, values = (x.reshape(*split, -1, width).transpose(1, 0, 3, 2, 4) for x in (keys, values))
    if segments is not None:
        segments = jnp.broadcast_to(segments, (batch, length)).reshape(split).transpose(1, 0, 2)
    block = Block(keys, values, segments)
    attended = _attend(ring, scoring, grouped.reshape(*grouped.shape[:3], -1, width), block)
    return attended.reshape(grouped.shape).transpose(1, 0, 4, 2, 3, 5).reshape(query.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(ring: Ring, scoring: Scoring, queries: jax.Array, own: Block) -> jax.Array:
    return _forward(ring, scoring, queries, own)[0]


def _forward(
    ring: Ring, scoring: Scoring, queries: jax.Array, own: Block
) -> tuple[jax.Array, tuple[Any, ...]]:

    def attend(visit: Visit, block: Block, sums: Sums, luggage: None) -> tuple[Sums, None]:
        for pair in visit.pairs():
            keys, values = _at((block.keys, block.values), pair.block)
            mask = visit.mask(pair, own, block)
            rows = _at((sums, queries), pair.queries)
            sums = _put(sums, pair.queries, add(scoring, *rows, keys, values, mask))
        return sums, luggage

    sums, _ = _travel(ring, own, no_sums(queries), None, attend)
    attended = (sums.values / sums.weights).astype(queries.dtype)
    return attended, (queries, own, attended, sums.logs())


def _backward(
    ring: Ring, scoring: Scoring, kept: tuple[Any, ...], given: jax.Array
) -> tuple[jax.Array, Block]:
    queries, own, attended, logs = kept
    share = jnp.sum(
        attended.astype(jnp.float32) * given.astype(jnp.float32), axis=-1, keepdims=True
    )
    rows = Rows(queries, given, share, logs)

    def add_gradients(
        visit: Visit, block: Block, of_queries: jax.Array, luggage: Any
    ) -> tuple[Any, Any]:
        for pair in visit.pairs():
            keys, values = _at((block.keys, block.values), pair.block)
            mask = visit.mask(pair, own, block)
            gradient = gradients(scoring, _at(rows, pair.queries), keys, values, mask)
            of_queries = _add(of_queries, pair.queries, gradient[0])
            luggage = _add(luggage, pair.block, gradient[1:])
        return of_queries, luggage

    nothing = jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.float32), (queries, own.keys, own.values)
    )
    of_queries, (of_keys, of_values) = _travel(ring, own, nothing[0], nothing[1:], add_gradients)
    of_own = Block(of_keys.astype(own.keys.dtype), of_values.astype(own.values.dtype), None)
    return of_queries.astype(queries.dtype), of_own


_attend.defvjp(_forward, _backward)


def _travel(
    ring: Ring,
    own: Block,
    state: Any,
    luggage: Any,
    visit: Callable[[Visit, Block, Any, Any], tuple[Any, Any]],
) -> tuple[Any, Any]:
    """Every block visits every core: (the core's state, what comes home with its own block).

    While a block is worked on, it is on its way to the next core already; what it carries
    follows."""
    rank = jax.lax.axis_index(ring.axis)
    following = ring.pass_on(own) if ring.size > 1 else own
    state, luggage = visit(Visit(ring, rank, rank, at_home=True), own, state, luggage)
    if ring.size == 1:
        return state, luggage

    def away(number: Any, block: Block, state: Any, luggage: Any) -> tuple[Any, Any]:
        source = (rank - number) % ring.size
        return visit(Visit(ring, rank, source, at_home=False), block, state, luggage)

    def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
        state, block, luggage = carry
        following, luggage = ring.pass_on(block), ring.pass_on(luggage)
        state, luggage = away(number, block, state, luggage)
        return (state, following, luggage), None

    (state, following, luggage), _ = jax.lax.scan(
        step, (state, following, luggage), jnp.arange(1, ring.size - 1)
    )
    state, luggage = away(ring.size - 1, following, state, ring.pass_on(luggage))
    return state, ring.pass_on(luggage)


def _at(tree: Tree, part: Any) -> Tree:
    parts: Tree = jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, part, keepdims=False), tree
    )
    return parts


def _put(tree: Tree, part: Any, values: Tree) -> Tree:
    updated: Tree = jax.tree.map(
        lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, part, 0), tree, values
    )
    return updated


def _add(tree: Tree, part: Any, values: Tree) -> Tree:
    return _put(tree, part, jax.tree.map(jnp.add, _at(tree, part), values))
