"""What differs between the cores of a `jax.shard_map` region, as JAX's types know it."""

from typing import Any

import jax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The mesh axes along which cores may hold different values of x."""
    axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return axes


def vary(tree: Any, axes: tuple[str, ...]) -> Any:
    """The same arrays, of which every core along `axes` has its own.

    Gradients of them are each core's own, too: not added up over cores.
    """

    def own(x: jax.Array) -> jax.Array:
        further = tuple(axis for axis in axes if axis not in varying_axes(x))
        return jax.lax.pcast(x, further, to="varying") if further else x

    return jax.tree.map(own, tree)
