"""Context parallelism: the positions of a text are divided among the cores of a mesh axis.

Functions of one core's part, within a `jax.shard_map` region over the axis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from models.errors import ShardingError
from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.masks import Visibility
from models.parallel.all_to_all import all_to_all_attention
from models.parallel.blockwise import Scoring
from models.parallel.order import balanced
from models.parallel.ring import Ring, ring_attention

AXIS = "context"

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class ContextParallel:
    """How attention sees the positions of the other cores along the mesh axis `context`.

    `method` is "ring" (keys and values travel from core to core, and positions lie in an order in
    which each core has as much to do) or "all_to_all" (each core gets whole texts, for some of the
    heads). Raises ShardingError for another method.
    """

    size: int
    method: str = "ring"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ShardingError(
                f"the context parallelism method {self.method!r} is not supported; choose one of "
                f"{', '.join(METHODS)}"
            )

    def order(self, length: int) -> np.ndarray:
        """Which positions [length] of a causal text lie where: those of the first core first.

        Raises ShardingError if they cannot be shared equally.
        """
        chunks = METHODS[self.method].chunks * self.size
        if length % chunks:
            raise ShardingError(
                f"{length} positions cannot be split over context={self.size} with "
                f"{self.method!r}, which needs {chunks} equal chunks. Use a multiple of {chunks}."
            )
        order = balanced(length, self.size) if chunks > self.size else np.arange(length)
        return order.astype(np.int32)

    def own_positions(self, length: int) -> jax.Array:
        """Which positions [length / size] of a text this core has."""
        parts = jnp.asarray(self.order(length).reshape(self.size, -1))
        return parts[jax.lax.axis_index(AXIS)]

    def own(self, tree: Tree) -> Tree:
        """This core's positions of arrays [B, T, ...] of whole texts; others stay."""

        def part(x: jax.Array) -> jax.Array:
            return x if x.ndim < 2 else x[:, self.own_positions(x.shape[1])]

        own: Tree = jax.tree.map(part, tree)
        return own

    def attend(
        self,
        query: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        call: AttentionCall,
    ) -> jax.Array:
        """A core's positions of `dot_product_attention` of a text with itself.

        Raises ShardingError where heads cannot be shared, or for what it cannot do: attention to
        another text, with a bias, with sinks or with dropout.
        """
        others = (call.bias, call.sinks, call.dropout)
        if any(other is not None for other in others) or not isinstance(call.mask, Visibility):
            raise ShardingError(
                "context parallelism supports only self-attention without a bias, sinks or dropout "
                "of its weights. Use a mesh without context."
            )
        if self.method == "all_to_all" and query.shape[2] % self.size:
            raise ShardingError(
                f"{self.method!r} cannot split the {query.shape[2]} query heads of a core over "
                f"context={self.size}. Choose a size that divides them, or ring attention."
            )
        scoring = Scoring(scale=call.factor(query.shape[-1]), softcap=call.softcap)
        return METHODS[self.method].attend(self, scoring, call.mask, query, keys, values)


@dataclass(frozen=True)
class _Method:
    chunks: int  # of a text, for each core
    attend: Callable[..., jax.Array]


def _ring(
    context: ContextParallel,
    scoring: Scoring,
    seen: Visibility,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
) -> jax.Array:
    ring = Ring(axis=AXIS, size=context.size, window=seen.window)
    return ring_attention(ring, scoring, query, keys, values, seen.segments)


def _all_to_all(
    context: ContextParallel,
    scoring: Scoring,
    seen: Visibility,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
) -> jax.Array:
    segments = seen.segments
    if segments is not None:
        segments = jax.lax.all_gather(segments, AXIS, axis=1, tiled=True)
    mask = Visibility(seen.window, segments).mask(query.shape[1] * context.size)

    call = AttentionCall(mask, scale=scoring.scale, softcap=scoring.softcap)
    return all_to_all_attention(
        AXIS, query, keys, values, partial(dot_product_attention, call=call)
    )


METHODS: Mapping[str, _Method] = {
    "ring": _Method(2, _ring),
    "all_to_all": _Method(1, _all_to_all),
}
"""Name -> how."""
