"""Low-rank adapters beside linear maps: Hu et al., "LoRA", 2021."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.dropout import Dropout


class LowRank(nnx.Module):
    """y[..., *out_axes] = scale · (dropout(x[..., *in_axes]) · a[*in_axes, R]) · b[R, *out_axes].

    At first b is zero, so that the adapted map is the map alone; a is uniform in
    ±1 / sqrt(width of the input), as in PEFT. Both are used in the dtype of x.
    """

    def __init__(
        self,
        in_axes: Sequence[int],
        out_axes: Sequence[int],
        *,
        rank: int,
        scale: float,
        dropout: float = 0.0,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_in_axes, self.scale = len(in_axes), scale
        self.dropout = Dropout(dropout)
        limit = 1 / math.sqrt(math.prod(in_axes))
        shape = (*in_axes, rank)
        self.a = nnx.Param(jax.random.uniform(rngs.params(), shape, param_dtype, -limit, limit))
        self.b = nnx.Param(jnp.zeros((rank, *out_axes), param_dtype))
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


def switch_adapters(model: nnx.Module, enabled: bool) -> None:
    """Lets the adapters of a model count, or leaves the model as it was without them."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, LowRank):
            module.enabled = enabled
