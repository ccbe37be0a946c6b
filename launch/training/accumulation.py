"""What a step sums up over its micro-batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from models.varying import vary


class Part(NamedTuple):
    """What a micro-batch gives, and several together: trees of arrays."""

    sums: Any  # added up, in their dtypes
    maxima: Any  # magnitudes, of which the largest counts


def accumulate(
    function: Callable[[Any], Part], rows: Any, count: int, axes: tuple[str, ...] = ()
) -> Part:
    """function(micro-batch) over `count` parts of rows, arrays [B, …], together.

    The function is compiled once. In a `jax.shard_map` region over `axes` all is each core's own.
    """

    def own(part: Any) -> Part:
        return vary(function(part), axes)

    if count == 1:
        return own(rows)
    parts = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), rows)

    def add(so_far: Part, part: Any) -> tuple[Part, None]:
        new = own(part)
        sums = jax.tree.map(jnp.add, so_far.sums, new.sums)
        return Part(sums, jax.tree.map(jnp.maximum, so_far.maxima, new.maxima)), None

    # Sums and maxima of magnitudes both begin at zero.
    made = jax.eval_shape(own, jax.tree.map(lambda x: x[0], parts))
    zeros = vary(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), made), axes)
    return jax.lax.scan(add, zeros, parts)[0]
