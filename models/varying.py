"""Values that differ between the cores of a `jax.shard_map` region, as JAX's types track them."""

from collections.abc import Collection
from typing import Any

import jax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The mesh axes along which cores may hold different values of x."""
    axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return axes


def vary(tree: Any, axes: Collection[str]) -> Any:
    """The arrays of a tree, marked as varying along `axes`, where every core has its own.

    Gradients with respect to them also stay on each core; they are not summed over cores.
    """

    def own(x: jax.Array) -> jax.Array:
        further = tuple(axis for axis in axes if axis not in varying_axes(x))
        return jax.lax.pcast(x, further, to="varying") if further else x

    return jax.tree.map(own, tree)
