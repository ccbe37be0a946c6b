"""Normalisation layers. Statistics are always taken in FP32."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class RMSNorm(nnx.Module):
    """y = x / sqrt(mean(x²) + eps) · scale over the last axis.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, with eps inside the root as
    in Llama.
    """

    def __init__(self, dim: int, *, eps: float, param_dtype: DTypeLike) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((dim,), param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        return (x32 * inverse_rms * self.scale[...].astype(jnp.float32)).astype(x.dtype)
