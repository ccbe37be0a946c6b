"""Axes of parameters: each has its names where it is made, as the metadata `axes` of its variable.

Megatron's layout (Shoeybi et al., 2019): attention heads and the feed-forward width are split, so
each block needs one all-reduce after attention and one after the feed-forward block. Which mesh
axis splits which of the names, models/sharding.py says.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

AXES = "axes"
"""Name of the metadata: a tuple of the names of an array's axes."""

VECTOR_AXES: Mapping[str, str] = {"dim": "residual"}
"""What an axis of kernels is called in vectors, which are too small to split between uses."""


def make_bias(axes: Mapping[str, int], dtype: DTypeLike) -> nnx.Param[jax.Array]:
    """The zero bias of results with these axes, by name and size."""
    names = tuple(VECTOR_AXES.get(name, name) for name in axes)
    return nnx.Param(jnp.zeros(tuple(axes.values()), dtype), axes=names)


def axes_of(variable: nnx.Variable[jax.Array]) -> tuple[str, ...]:
    """The names of a parameter's axes."""
    names: tuple[str, ...] = variable.get_metadata(AXES)
    return names


def fill_up(x: jax.Array, axis: int, size: int) -> jax.Array:
    """x with zeros at the end of an axis, so that it is of the size of a padded parameter's."""
    missing = size - x.shape[axis]
    widths = [(0, missing if number == axis % x.ndim else 0) for number in range(x.ndim)]
    return jnp.pad(x, widths) if missing else x
