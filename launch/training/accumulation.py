"""What a step sums up over its micro-batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Part(NamedTuple):
    """What a micro-batch gives, and several together: trees of arrays."""

    sums: Any  # added up, in their dtypes
    maxima: Any  # of which the largest counts


def accumulate(function: Callable[[Any], Part], rows: Any, count: int) -> Part:
    """function(micro-batch) over `count` parts of rows, arrays [B, …], together."""
    if count == 1:
        return function(rows)
    parts = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), rows)

    def add(so_far: Part, part: Any) -> tuple[Part, None]:
        new = function(part)
        sums = jax.tree.map(jnp.add, so_far.sums, new.sums)
        return Part(sums, jax.tree.map(jnp.maximum, so_far.maxima, new.maxima)), None

    first = function(jax.tree.map(lambda x: x[0], parts))
    return jax.lax.scan(add, first, jax.tree.map(lambda x: x[1:], parts))[0]
