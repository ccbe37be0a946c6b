"""Gradients of a step in micro-batches, added up in FP32."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def accumulate(function: Callable[[Any], Any], rows: Any, count: int) -> Any:
    """The sums, FP32, of function(micro-batch) over `count` parts of rows: arrays [B, …].

    The function gives a tree of arrays; it is compiled once.
    """

    def widened(part: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.float32), function(part))

    if count == 1:
        return widened(rows)
    parts = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), rows)
    first = widened(jax.tree.map(lambda x: x[0], parts))
    rest = jax.tree.map(lambda x: x[1:], parts)
    sums, _ = jax.lax.scan(
        lambda sums, part: (jax.tree.map(jnp.add, sums, widened(part)), None), first, rest
    )
    return sums
