"""Nie et al., "A Time Series is Worth 64 Words", 2023.

Axis names: B batch, L known times, F foretold times, C series, P patches, D model width.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.blocks import residual
from models.layers.embedding import in_front
from models.layers.factory import LayerFactory
from models.layers.norms import BatchNorm, LayerNorm
from models.layers.pixels import check_shape
from models.patchtst.config import PatchTSTConfig

_LEAST_VARIANCE, _LEAST_MEAN = 1e-5, 1e-10


class PatchBlock(nnx.Module):
    """Attention over patches, then over series if the config says so, then an MLP."""

    def __init__(self, config: PatchTSTConfig, *, rngs: nnx.Rngs) -> None:
        self.pre_norm = config.pre_norm
        self.attention_norm = _norm(config)
        self.attention = config.block.attention(rngs)
        self.channel_norm = _norm(config) if config.channel_attention else None
        self.mlp_norm = _norm(config)
        self.mlp = config.block.mlp(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, C, P, D] -> [B, C, P, D]."""
        x = self._look(x, self.attention_norm)
        if self.channel_norm is not None:
            x = self._look(x.swapaxes(1, 2), self.channel_norm).swapaxes(1, 2)
        return residual(x, self.mlp, self.mlp_norm, pre_norm=self.pre_norm)

    def _look(self, x: jax.Array, norm: BatchNorm | LayerNorm) -> jax.Array:
        """Attention over the third axis."""
        rows = x.reshape(-1, *x.shape[2:])
        rows = residual(rows, lambda x: self.attention(x), norm, pre_norm=self.pre_norm)
        return rows.reshape(x.shape)


class OwnPatches(nnx.Module):
    """A linear map of the patches of each series."""

    def __init__(self, config: PatchTSTConfig, make: LayerFactory) -> None:
        self.config, count = config, config.num_channels
        self.kernel = make.table(series=count, times=config.patch_length, dim=config.dim)
        self.bias = make.constant(series=count, residual=config.dim)

    def __call__(self, series: jax.Array) -> jax.Array:
        """series [B, C, L] -> [B · C, P, D]."""
        config = self.config
        begins = config.patch_stride * jnp.arange(config.num_patches)
        patches = series[..., begins[:, None] + jnp.arange(config.patch_length)]  # [B, C, P, times]
        x = jnp.einsum("bcpt,ctd->bcpd", patches, self.kernel[...].astype(series.dtype))
        x = x + self.bias[...][:, None].astype(x.dtype)
        return x.reshape(-1, *x.shape[2:])


class PatchTST(nnx.Module):
    """Known times of several series to their next ones."""

    def __init__(self, config: PatchTSTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, dim = LayerFactory.of(config, rngs), config.dim
        is_shared, length = config.shared_patches, config.patch_length
        self.patches = (
            make.conv(1, dim, (length,), stride=config.patch_stride) if is_shared else None
        )
        self.own_patches = None if is_shared else OwnPatches(config, make)
        self.class_token = make.constant(residual=dim) if config.class_token else None
        tokens, is_learnt = config.num_patches + config.class_token, config.positions == "random"
        drawn = replace(make, stddev=1.0)
        self.positions = drawn.table(positions=tokens, residual=dim) if is_learnt else None
        self.sinusoids = None if is_learnt else _sinusoids(tokens, dim, config.param_dtype)
        self.blocks = nnx.List([PatchBlock(config, rngs=rngs) for _ in range(config.num_layers)])
        width = dim if config.is_pooled else tokens * dim
        self.projection = make.linear(width, config.horizon, axes=("dim", "times"))

    def __call__(self, values: jax.Array) -> jax.Array:
        """The next values FP32 [B, F, C] of known ones [B, L, C]."""
        config = self.config
        axes = {"batch": "B", "time steps": config.context, "series": config.num_channels}
        check_shape("series", values, axes)
        values = values.astype(jnp.float32)
        middle, scale = self._scale(values)
        x = self._embed_patches(((values - middle) / scale).astype(config.dtype))
        for block in self.blocks:
            x = block(x)
        forecast = self.projection(self._pool(x)).astype(jnp.float32)  # [B, C, F]
        return forecast.swapaxes(1, 2) * scale + middle

    def _scale(self, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is taken from each series, and what it is then divided by: [B, 1, C] each."""
        mean = jnp.mean(values, axis=1, keepdims=True)
        if self.config.scaling == "std":
            variance = jnp.mean(jnp.square(values - mean), axis=1, keepdims=True)
            return mean, jnp.sqrt(variance + _LEAST_VARIANCE)
        if self.config.scaling == "mean":
            size = jnp.mean(jnp.abs(values), axis=1, keepdims=True)
            return jnp.zeros_like(size), jnp.maximum(size, _LEAST_MEAN)
        return jnp.zeros_like(mean), jnp.ones_like(mean)

    def _embed_patches(self, values: jax.Array) -> jax.Array:
        """Tokens [B, C, P, D] of values [B, L, C]."""
        series = values[:, self.config.begin :].swapaxes(1, 2)  # [B, C, L]
        if self.patches is not None:
            x = self.patches(series.reshape(-1, series.shape[2], 1))
        else:
            assert self.own_patches is not None
            x = self.own_patches(series)
        x = in_front(x, self.class_token)
        if self.positions is not None:
            x = x + self.positions[...].astype(x.dtype)
        if self.sinusoids is not None:
            x = x + jax.lax.stop_gradient(self.sinusoids[...]).astype(x.dtype)
        return x.reshape(*series.shape[:2], *x.shape[1:])

    def _pool(self, x: jax.Array) -> jax.Array:
        """What the forecast of each series is made of: [B, C, D], or [B, C, P · D]."""
        if self.config.class_token:
            return x[:, :, 0]
        if self.config.pooling == "mean":
            return jnp.mean(x.astype(jnp.float32), axis=2).astype(x.dtype)
        return jnp.max(x, axis=2) if self.config.is_pooled else x.reshape(*x.shape[:2], -1)


def _norm(config: PatchTSTConfig) -> BatchNorm | LayerNorm:
    kind = BatchNorm if config.norm == "batchnorm" else LayerNorm
    return kind(config.dim, eps=config.norm_eps, param_dtype=config.param_dtype)


def _sinusoids(tokens: int, dim: int, dtype: str) -> nnx.Param[jax.Array]:
    """Sines and cosines in turn, with mean 0 and deviation 0.1: [tokens, dim]."""
    rates = jnp.exp(-jnp.log(10_000.0) / dim * jnp.arange(0, dim, 2))
    angles = jnp.arange(tokens)[:, None] * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(tokens, -1)[:, :dim]
    values = (waves - waves.mean()) / (10 * waves.std(ddof=1))
    return nnx.Param(values.astype(dtype), axes=("positions", "residual"))
