"""Low-rank adapters beside linear maps: Hu et al., "LoRA", 2021."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.dropout import Dropout


class LowRank(nnx.Module):
    """y[..., *out_axes] = scale · (dropout(x[..., *in_axes]) · a[*in_axes, R]) · b[R, *out_axes].

    At first b is zero, so that the adapted map is the map alone; a is uniform in
    ±1 / sqrt(width of the input), as in PEFT. Both are used in the dtype of x. Axes are given as
    those of the map, by name and size.
    """

    def __init__(
        self,
        in_axes: Mapping[str, int],
        out_axes: Mapping[str, int],
        *,
        rank: int,
        scale: float,
        dropout: float = 0.0,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_in_axes, self.scale = len(in_axes), scale
        self.dropout = Dropout(dropout)
        limit = 1 / math.sqrt(math.prod(in_axes.values()))
        shape = (*in_axes.values(), rank)
        self.a = nnx.Param(
            jax.random.uniform(rngs.params(), shape, param_dtype, -limit, limit),
            axes=(*in_axes, "rank"),
        )
        self.b = nnx.Param(
            jnp.zeros((rank, *out_axes.values()), param_dtype), axes=("rank", *out_axes)
        )
        self.enabled = True

    def __call__(self, x: jax.Array) -> jax.Array:
        """What is added to the map's result; x [B, ...]."""
        low = jnp.tensordot(self.dropout(x), self.a[...].astype(x.dtype), axes=self.num_in_axes)
        return self.scale * jnp.tensordot(low, self.b[...].astype(x.dtype), axes=1)

    def product(self) -> jax.Array:
        """What is added to the kernel [*in_axes, *out_axes], FP32 at the least."""
        dtype = jnp.promote_types(self.a.dtype, jnp.float32)
        a, b = self.a[...].astype(dtype), self.b[...].astype(dtype)
        return self.scale * jnp.tensordot(a, b, axes=1, precision=jax.lax.Precision.HIGHEST)


class StackedLowRank(nnx.Module):
    """Many adapters beside one map: y[n] = x[n, ..., *in_axes] · a[k][*in_axes, R] · b[k][R,
    *out_axes], where k = chosen[n] is the adapter of row n.

    Scales are part of b. At first everything is zero, and so is what is added.
    """

    chosen: jax.Array | None

    def __init__(
        self,
        adapters: int,
        in_axes: Mapping[str, int],
        out_axes: Mapping[str, int],
        *,
        rank: int,
        dtype: DTypeLike,
    ) -> None:
        self.num_in_axes = len(in_axes)
        self.a = nnx.Param(
            jnp.zeros((adapters, *in_axes.values(), rank), dtype),
            axes=("adapters", *in_axes, "rank"),
        )
        self.b = nnx.Param(
            jnp.zeros((adapters, rank, *out_axes.values()), dtype),
            axes=("adapters", "rank", *out_axes),
        )
        self.chosen = nnx.data(None)
        self.enabled = True

    def __call__(self, x: jax.Array) -> jax.Array:
        """What is added to the map's result; x [B, ..., *in_axes]."""
        if self.chosen is None:
            raise ValueError("call choose_adapters first, to choose the adapter of each row")
        rows, rank = x.shape[0], self.a.shape[-1]
        outer = x.shape[: x.ndim - self.num_in_axes]
        out_axes = self.b.shape[2:]
        a = jnp.take(self.a[...], self.chosen, axis=0).reshape(rows, -1, rank)
        b = jnp.take(self.b[...], self.chosen, axis=0).reshape(rows, rank, -1)
        flat = x.reshape(rows, math.prod(outer[1:]), -1)
        added = (flat @ a.astype(x.dtype)) @ b.astype(x.dtype)
        return added.reshape(*outer, *out_axes)


def choose_adapters(model: nnx.Module, chosen: jax.Array) -> None:
    """Gives every row of the next call its adapter, int32 [B]."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, StackedLowRank):
            module.chosen = chosen


def switch_adapters(model: nnx.Module, enabled: bool) -> None:
    """Enables or disables the adapters of a model."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, LowRank):
            module.enabled = enabled
