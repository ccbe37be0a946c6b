"""Normalisation layers. Statistics are always taken in FP32."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class RMSNorm(nnx.Module):
    """y = x / sqrt(mean(x²) + eps) · (offset + scale) over the last axis.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, with eps inside the root as
    in Llama. The offset is 1 in Gemma, whose scales are stored around zero.
    """

    def __init__(
        self, dim: int, *, eps: float, offset: float = 0.0, param_dtype: DTypeLike
    ) -> None:
        self.eps, self.offset = eps, offset
        self.scale = nnx.Param(jnp.full((dim,), 1 - offset, param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...].astype(jnp.float32)
        if self.offset:
            scale = self.offset + scale
        return (x32 * inverse_rms * scale).astype(x.dtype)


class LayerNorm(nnx.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) · scale + bias over the last axis.

    Ba et al., "Layer Normalization", 2016; the bias can be left out.
    """

    def __init__(self, dim: int, *, eps: float, bias: bool = True, param_dtype: DTypeLike) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((dim,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((dim,), param_dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...].astype(jnp.float32)
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(x.dtype)
