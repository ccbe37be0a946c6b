"""Normalisation layers. Statistics are always taken in FP32."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.axes import make_bias


def rms_normalised(x: jax.Array, scale: jax.Array | None, eps: float) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · scale over the last axis, of the dtype of x: scale [D] in FP32."""
    x32 = x.astype(jnp.float32)
    y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (y if scale is None else y * scale).astype(x.dtype)


class RMSNorm(nnx.Module):
    """y = x / sqrt(mean(x²) + eps) · (offset + scale) over the last axis.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, with eps inside the root as
    in Llama. The offset is 1 in Gemma, whose scales are stored around zero. The scale can be left
    out. `normalise`, `rms_normalised` at first, computes it, with offset + scale.
    """

    normalise: Callable[[jax.Array, jax.Array | None, float], jax.Array]
    scale: nnx.Param[jax.Array] | None

    def __init__(
        self,
        dim: int,
        *,
        eps: float,
        offset: float = 0.0,
        has_scale: bool = True,
        axis: str = "residual",
        param_dtype: DTypeLike,
    ) -> None:
        self.normalise, self.eps, self.offset = rms_normalised, eps, offset
        self.scale = nnx.data(None)
        if has_scale:
            scale = nnx.Param(jnp.full((dim,), 1 - offset, param_dtype), axes=(axis,))
            self.scale = nnx.data(scale)

    def __call__(self, x: jax.Array) -> jax.Array:
        scale = None if self.scale is None else self.scale[...].astype(jnp.float32)
        if scale is not None and self.offset:
            scale = self.offset + scale
        return self.normalise(x, scale, self.eps)


def standardised(x: jax.Array, eps: float) -> jax.Array:
    """(x - mean(x)) / sqrt(var(x) + eps) over the last axis, FP32."""
    x32 = x.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps)


class LayerNorm(nnx.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) · scale + bias over the last axis.

    Ba et al., "Layer Normalization", 2016; the bias can be left out.
    """

    def __init__(
        self,
        dim: int,
        *,
        eps: float,
        bias: bool = True,
        axis: str = "residual",
        param_dtype: DTypeLike,
    ) -> None:
        self.eps = eps
        self.scale = _scale(axis, dim, param_dtype)
        self.bias = make_bias({axis: dim}, param_dtype) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = standardised(x, self.eps) * self.scale[...].astype(jnp.float32)
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(x.dtype)


def rms_normalised_jointly(x: jax.Array, eps: float, *, share: float = 1.0) -> jax.Array:
    """x / sqrt(mean(x²) / share + eps) over the last two axes, FP32: only `share` of the numbers
    count, and the others are zeros."""
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32 * x32, axis=(-2, -1), keepdims=True)
    return x32 * jax.lax.rsqrt(mean / share + eps)


class HeadsNorm(nnx.Module):
    """y = normalise(x, eps) · scale of x [..., heads, head_dim], with a scale for each number of
    every head. `normalise` is `standardised`, over each head, in Command R, and
    `rms_normalised_jointly` in OLMo 2."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        normalise: Callable[[jax.Array, float], jax.Array],
        *,
        eps: float,
        param_dtype: DTypeLike,
    ) -> None:
        self.normalise, self.eps = normalise, eps
        scale = jnp.ones(tuple(sizes.values()), param_dtype)
        self.scale = nnx.Param(scale, axes=tuple(sizes))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.normalise(x, self.eps) * self.scale[...].astype(jnp.float32)
        return y.astype(x.dtype)


class Affine(nnx.Module):
    """y = x · scale + bias over the last axis: what MobileBERT has in place of a norm."""

    def __init__(self, dim: int, *, axis: str = "residual", param_dtype: DTypeLike) -> None:
        self.scale = _scale(axis, dim, param_dtype)
        self.bias = make_bias({axis: dim}, param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.scale[...].astype(x.dtype) + self.bias[...].astype(x.dtype)


class GroupNorm(nnx.Module):
    """LayerNorm over the space and the channels of each group of x [B, *space, channels], with a
    scale and a bias per channel. Wu and He, "Group Normalization", 2018."""

    def __init__(
        self,
        channels: int,
        *,
        groups: int,
        eps: float,
        axis: str = "residual",
        param_dtype: DTypeLike,
    ) -> None:
        self.groups, self.eps = groups, eps
        self.scale = _scale(axis, channels, param_dtype)
        self.bias = make_bias({axis: channels}, param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        grouped = x.astype(jnp.float32).reshape(
            x.shape[0], -1, self.groups, x.shape[-1] // self.groups
        )
        centred = grouped - jnp.mean(grouped, axis=(1, 3), keepdims=True)
        variance = jnp.mean(centred * centred, axis=(1, 3), keepdims=True)
        y = (centred * jax.lax.rsqrt(variance + self.eps)).reshape(x.shape)
        y = y * self.scale[...].astype(jnp.float32) + self.bias[...].astype(jnp.float32)
        return y.astype(x.dtype)


class BatchNorm(nnx.Module):
    """y = (x - mean) / sqrt(variance + eps) · scale + bias per channel of x [B, *space, channels].

    Ioffe and Szegedy, "Batch Normalization", 2015. Mean and variance are the running statistics,
    which no gradient reaches; in training they are those of the batch, and the running ones move
    towards them by `momentum`: split the model again to keep them. `axes`, () at first, are mesh
    axes whose cores have other rows of the batch.
    """

    axes: tuple[str, ...]

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        axis: str = "residual",
        param_dtype: DTypeLike,
    ) -> None:
        self.eps, self.momentum, self.axes = eps, momentum, ()
        self.scale = _scale(axis, channels, param_dtype)
        self.bias = make_bias({axis: channels}, param_dtype)
        self.mean = nnx.BatchStat(jnp.zeros((channels,), param_dtype), axes=(axis,))
        self.variance = nnx.BatchStat(jnp.ones((channels,), param_dtype), axes=(axis,))

    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x32 = x.astype(jnp.float32)
        mean, variance = self._update(x32) if train else self._running()
        scale = self.scale[...].astype(jnp.float32) * jax.lax.rsqrt(variance + self.eps)
        bias = self.bias[...].astype(jnp.float32)
        # Running statistics make one multiplication and addition of it, as in PyTorch.
        y = (x32 - mean) * scale + bias if train else x32 * scale + (bias - mean * scale)
        return y.astype(x.dtype)

    def _mean(self, x: jax.Array) -> jax.Array:
        """The mean of each channel over the batch."""
        mean = jnp.mean(x, axis=tuple(range(x.ndim - 1)))
        return jax.lax.pmean(mean, self.axes) if self.axes else mean

    def _running(self) -> tuple[jax.Array, jax.Array]:
        statistics = self.mean[...], self.variance[...]
        mean, variance = (jax.lax.stop_gradient(s.astype(jnp.float32)) for s in statistics)
        return mean, variance

    def _update(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The statistics of the batch, towards which the running ones are moved."""
        mean = self._mean(x)
        variance = self._mean(jnp.square(x - mean))
        count = x.size // x.shape[-1] * (jax.lax.axis_size(self.axes) if self.axes else 1)
        # The running variance is that of the population: Bessel's correction, as in PyTorch.
        seen = mean, variance * (count / max(count - 1, 1))
        for statistic, old, new in zip(
            (self.mean, self.variance), self._running(), seen, strict=True
        ):
            running = old + self.momentum * (jax.lax.stop_gradient(new) - old)
            statistic[...] = running.astype(statistic[...].dtype)
        return mean, variance


def _scale(axis: str, size: int, dtype: DTypeLike) -> nnx.Param[jax.Array]:
    return nnx.Param(jnp.ones((size,), dtype), axes=(axis,))
