"""Context parallelism: the positions of a text are shared by the cores of one mesh axis."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from models.errors import ShardingError
from models.layers.attention import dot_product_attention
from models.layers.masks import Visibility
from models.parallel.all_to_all import all_to_all_attention
from models.parallel.blockwise import Scoring
from models.parallel.manual import manual
from models.parallel.order import balanced
from models.parallel.ring import Ring, ring_attention
from models.sharding import BATCH_AXES

AXIS = "context"
HEADS = "model"  # the mesh axis that splits heads


@dataclass(frozen=True)
class ContextParallel:
    """How attention sees the positions of other cores of a mesh with the axis `context`.

    `method` is "ring" (keys and values travel from core to core, and positions lie in an order in
    which each core has as much to do) or "all_to_all" (each core gets whole texts, for some of the
    heads). Raises ShardingError for another.
    """

    mesh: Mesh
    method: str = "ring"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ShardingError(
                f"there is no context parallelism {self.method!r}; there is {', '.join(METHODS)}"
            )

    @property
    def size(self) -> int:
        """Cores that share a text."""
        return self.mesh.shape[AXIS]

    def order(self, length: int) -> np.ndarray:
        """Which positions [length] of a causal text lie where. Raises ShardingError if they cannot
        be shared equally."""
        chunks = METHODS[self.method].chunks * self.size
        if length % chunks:
            raise ShardingError(
                f"{length} positions cannot be shared by context={self.size} with "
                f"{self.method!r}, which cuts them into {chunks} equal chunks. Choose a multiple "
                f"of {chunks}."
            )
        return balanced(length, self.size) if chunks > self.size else np.arange(length)

    def attend(
        self,
        query: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        mask: jax.Array | Visibility | None,
        *,
        bias: jax.Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> jax.Array:
        """`dot_product_attention` of a text with itself, whose positions lie in `order`.

        Raises ShardingError where the heads cannot be split, or for what it cannot do: attention
        to another text or with a bias.
        """
        if bias is not None or not isinstance(mask, Visibility):
            raise ShardingError(
                "context parallelism is for attention of a text to itself, without a bias on its "
                "scores. Use a mesh without context."
            )
        scoring = Scoring(
            scale=query.shape[-1] ** -0.5 if scale is None else scale, softcap=softcap
        )
        method = METHODS[self.method]
        keys, values = self._shared_heads(query, keys, values)
        rows = tuple(axis for axis in BATCH_AXES if axis in self.mesh.axis_names)
        heads = HEADS if HEADS in self.mesh.axis_names else None
        spec = PartitionSpec(rows, AXIS, heads)
        segments = () if mask.segments is None else (mask.segments,)

        def part(
            query: jax.Array, keys: jax.Array, values: jax.Array, *segments: jax.Array
        ) -> jax.Array:
            seen = Visibility(mask.window, *segments)
            return method.attend(self.size, scoring, seen, query, keys, values)

        specs = (spec,) * 3 + (PartitionSpec(rows, AXIS),) * len(segments)
        attended: jax.Array = manual(part, self.mesh, specs, spec)(query, keys, values, *segments)
        return attended

    def _shared_heads(
        self, query: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Keys and values with as many heads as it takes to split them, each several times."""
        cores = self.mesh.shape.get(HEADS, 1)
        least = cores * (self.size if self.method == "all_to_all" else 1)
        if query.shape[2] % least:
            raise ShardingError(
                f"{query.shape[2]} query heads cannot be shared by {least} cores, as "
                f"{self.method!r} needs. Choose a mesh whose product divides them"
                + (", or ring attention." if least > cores else ".")
            )
        heads = math.lcm(keys.shape[2], cores)
        return (
            jnp.repeat(keys, heads // keys.shape[2], axis=2),
            jnp.repeat(values, heads // values.shape[2], axis=2),
        )


@dataclass(frozen=True)
class _Method:
    chunks: int  # of a text, for each core
    attend: Callable[..., jax.Array]


def _ring(
    size: int,
    scoring: Scoring,
    seen: Visibility,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
) -> jax.Array:
    ring = Ring(axis=AXIS, size=size, window=seen.window)
    return ring_attention(ring, scoring, query, keys, values, seen.segments)


def _all_to_all(
    size: int,
    scoring: Scoring,
    seen: Visibility,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
) -> jax.Array:
    segments = seen.segments
    if segments is not None:
        segments = jax.lax.all_gather(segments, AXIS, axis=1, tiled=True)
    mask = Visibility(seen.window, segments).mask(query.shape[1] * size)

    def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        return dot_product_attention(
            query, keys, values, mask, scale=scoring.scale, softcap=scoring.softcap
        )

    return all_to_all_attention(AXIS, query, keys, values, attend)


METHODS: Mapping[str, _Method] = {
    "ring": _Method(2, _ring),
    "all_to_all": _Method(1, _all_to_all),
}
"""Name -> how."""
