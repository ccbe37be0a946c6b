"""Nie et al., "A Time Series is Worth 64 Words", 2023.

Axis names: B batch, L known times, F foretold times, C series, P patches, D model width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import InputError
from models.layers.convolution import Conv
from models.layers.linear import Linear
from models.layers.norms import BatchNorm, LayerNorm
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
        if self.pre_norm:
            return x + self.mlp(self.mlp_norm(x))
        return self.mlp_norm(x + self.mlp(x))

    def _look(self, x: jax.Array, norm: BatchNorm | LayerNorm) -> jax.Array:
        """Attention over the third axis."""
        rows = x.reshape(-1, *x.shape[2:])
        attended, _ = self.attention(norm(rows) if self.pre_norm else rows, None)
        rows = rows + attended
        return (rows if self.pre_norm else norm(rows)).reshape(x.shape)


class PatchTST(nnx.Module):
    """Known times of several series to their next ones."""

    def __init__(self, config: PatchTSTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        stddev, dtype = config.initializer_range, config.param_dtype
        self.patches = Conv(
            1,
            config.dim,
            (config.patch_length,),
            stride=config.patch_stride,
            stddev=stddev,
            param_dtype=dtype,
            rngs=rngs,
        )
        tokens = config.num_patches + (1 if config.class_token else 0)
        self.class_token = (
            nnx.Param(jnp.zeros((config.dim,), dtype), axes=("residual",))
            if config.class_token
            else None
        )
        is_learnt = config.positions == "random"
        shape = (tokens, config.dim)
        axes = ("positions", "residual")
        self.positions = (
            nnx.Param(jax.random.normal(rngs.params(), shape, dtype), axes=axes)
            if is_learnt
            else None
        )
        self.sinusoids = (
            None if is_learnt else nnx.Param(_sinusoids(*shape).astype(dtype), axes=axes)
        )
        self.blocks = nnx.List([PatchBlock(config, rngs=rngs) for _ in range(config.num_layers)])
        is_pooled = config.class_token or config.pooling is not None
        self.projection = Linear(
            {"dim": config.dim} if is_pooled else {"patches": tokens, "dim": config.dim},
            {"times": config.horizon},
            bias=True,
            stddev=stddev,
            param_dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, values: jax.Array) -> jax.Array:
        """The next values FP32 [B, F, C] of known ones [B, L, C]."""
        size = (self.config.context, self.config.num_channels)
        if values.ndim != 3 or values.shape[1:] != size:
            raise InputError(
                f"the series have the shape {list(values.shape)}, but this model takes [B, "
                f"{size[0]}, {size[1]}]: batch, time steps, series"
            )
        values = values.astype(jnp.float32)
        middle, scale = self._scale(values)
        x = self._embed(((values - middle) / scale).astype(self.config.dtype))
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

    def _embed(self, values: jax.Array) -> jax.Array:
        """Tokens [B, C, P, D] of values [B, L, C]."""
        series = values[:, self.config.begin :].swapaxes(1, 2)  # [B, C, L]
        x = self.patches(series.reshape(-1, series.shape[2], 1))
        if self.positions is not None:
            positions = self.positions[...]
        else:
            assert self.sinusoids is not None
            positions = jax.lax.stop_gradient(self.sinusoids[...])
        positions = positions.astype(x.dtype)
        if self.class_token is not None:
            token = self.class_token[...].astype(x.dtype)
            tokens = jnp.broadcast_to(token, (x.shape[0], 1, x.shape[2]))
            x = jnp.concatenate([tokens, x], axis=1)
        x = x + positions
        return x.reshape(*series.shape[:2], *x.shape[1:])

    def _pool(self, x: jax.Array) -> jax.Array:
        """What the forecast of each series is made of: [B, C, D], or [B, C, P, D]."""
        if self.config.class_token:
            return x[:, :, 0]
        if self.config.pooling == "mean":
            return jnp.mean(x.astype(jnp.float32), axis=2).astype(x.dtype)
        return jnp.max(x, axis=2) if self.config.pooling == "max" else x


def _norm(config: PatchTSTConfig) -> BatchNorm | LayerNorm:
    kind = BatchNorm if config.norm == "batchnorm" else LayerNorm
    return kind(config.dim, eps=config.norm_eps, param_dtype=config.param_dtype)


def _sinusoids(tokens: int, dim: int) -> jax.Array:
    """Sines and cosines in turn, with mean 0 and deviation 0.1: [tokens, dim]."""
    rates = jnp.exp(-jnp.log(10_000.0) / dim * jnp.arange(0, dim, 2))
    angles = jnp.arange(tokens)[:, None] * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(tokens, -1)[:, :dim]
    return (waves - waves.mean()) / (10 * waves.std(ddof=1))
