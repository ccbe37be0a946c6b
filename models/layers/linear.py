"""Linear map between tensors of any rank, without bias."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class Linear(nnx.Module):
    """y[..., *out_axes] = x[..., *in_axes] · kernel[*in_axes, *out_axes].

    The kernel is stored in `param_dtype` and used in the dtype of `x`; its values are drawn from
    a normal distribution with standard deviation `stddev`.
    """

    def __init__(
        self,
        in_axes: Sequence[int],
        out_axes: Sequence[int],
        *,
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_in_axes = len(in_axes)
        self.kernel = nnx.Param(
            stddev * jax.random.normal(rngs.params(), (*in_axes, *out_axes), param_dtype)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tensordot(x, self.kernel[...].astype(x.dtype), axes=self.num_in_axes)
