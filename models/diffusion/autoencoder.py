"""The autoencoder between images and latents (Rombach et al., 2022).

Axis names: B batch, H height, W width of an image, h = H / reduction, w = W / reduction,
Z latent channels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import ENDS, STDDEV, ResidualBlock, conv, enlarged
from models.diffusion.config import AutoencoderConfig
from models.layers.attention import Attention
from models.layers.convolution import Conv
from models.layers.factory import LayerFactory
from models.layers.norms import GroupNorm
from models.layers.pixels import check_pixels

_EPS = 1e-6  # of all norms
_LOGVARIANCES = (-30.0, 20.0)  # what the encoder's are cut to


class Gaussian(NamedTuple):
    """A distribution of latents, not scaled for the denoiser."""

    mean: jax.Array  # [B, h, w, Z]
    logvariance: jax.Array  # [B, h, w, Z]


class ImageAttention(nnx.Module):
    """Attention with one head over the places of an image, added to it."""

    def __init__(self, channels: int, config: AutoencoderConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = _norm(channels, config)
        self.attention = Attention(
            channels,
            num_heads=1,
            num_kv_heads=1,
            head_dim=channels,
            axes=("head", "head"),  # one, which cannot be split
            bias=True,
            out_bias=True,
            out_stddev=STDDEV,
            **LayerFactory(STDDEV, config.param_dtype, rngs).weights,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        places = self.norm(x).reshape(len(x), -1, x.shape[-1])
        return x + self.attention(places).reshape(x.shape)


class Middle(nnx.Module):
    """A residual block, attention, and a residual block at the coarsest level."""

    def __init__(self, config: AutoencoderConfig, *, rngs: nnx.Rngs) -> None:
        width = config.channels[-1]
        self.residuals = nnx.List([_residual(config, width, width, rngs) for _ in range(2)])
        self.attention = ImageAttention(width, config, rngs=rngs) if config.attention else None

    def __call__(self, x: jax.Array) -> jax.Array:
        before, after = self.residuals
        x = before(x)
        return after(x if self.attention is None else self.attention(x))


class Level(nnx.Module):
    """Residual blocks; then the size changes."""

    def __init__(
        self,
        config: AutoencoderConfig,
        channels: tuple[int, int],  # before and after
        layers: int,
        resize: Conv | None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        before, width = channels
        self.residuals = nnx.List(
            [_residual(config, before if i == 0 else width, width, rngs) for i in range(layers)]
        )
        self.resize = resize

    def __call__(self, x: jax.Array) -> jax.Array:
        for residual in self.residuals:
            x = residual(x)
        return x


class Encoder(nnx.Module):
    """Images to twice as many latent channels: means and logarithms of variances."""

    def __init__(self, config: AutoencoderConfig, *, rngs: nnx.Rngs) -> None:
        widths, dtype = config.channels, config.param_dtype
        self.conv_in = conv(config.image_channels, widths[0], 3, dtype, rngs, axes=ENDS)
        levels = []
        for i, width in enumerate(widths):
            # Only the far ends are padded.
            resize = (
                None
                if i == len(widths) - 1
                else conv(width, width, 3, dtype, rngs, stride=2, padding=(0, 1))
            )
            pair = (widths[max(i - 1, 0)], width)
            levels.append(Level(config, pair, config.layers, resize, rngs=rngs))
        self.levels = nnx.List(levels)
        self.middle = Middle(config, rngs=rngs)
        self.norm = _norm(widths[-1], config)
        self.conv_out = conv(widths[-1], 2 * config.latent_channels, 3, dtype, rngs, axes=ENDS)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.conv_in(x)
        for level in self.levels:
            x = level(x)
            x = x if level.resize is None else level.resize(x)
        return self.conv_out(jax.nn.silu(self.norm(self.middle(x))))


class Decoder(nnx.Module):
    """Latents to images."""

    def __init__(self, config: AutoencoderConfig, *, rngs: nnx.Rngs) -> None:
        widths, dtype = config.channels[::-1], config.param_dtype
        self.conv_in = conv(config.latent_channels, widths[0], 3, dtype, rngs, axes=ENDS)
        self.middle = Middle(config, rngs=rngs)
        levels = []
        for i, width in enumerate(widths):
            resize = None if i == len(widths) - 1 else conv(width, width, 3, dtype, rngs)
            pair = (widths[max(i - 1, 0)], width)
            levels.append(Level(config, pair, config.layers + 1, resize, rngs=rngs))
        self.levels = nnx.List(levels)
        self.norm = _norm(widths[-1], config)
        self.conv_out = conv(widths[-1], config.image_channels, 3, dtype, rngs, axes=ENDS)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.middle(self.conv_in(x))
        for level in self.levels:
            x = level(x)
            x = x if level.resize is None else level.resize(enlarged(x))
        return self.conv_out(jax.nn.silu(self.norm(x)))


class Autoencoder(nnx.Module):
    """Images with pixels from -1 to 1, and their latents."""

    def __init__(self, config: AutoencoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        latent, dtype = config.latent_channels, config.param_dtype
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)
        self.quant_conv = (
            conv(2 * latent, 2 * latent, 1, dtype, rngs, axes=ENDS) if config.quant_conv else None
        )
        self.post_quant_conv = (
            conv(latent, latent, 1, dtype, rngs, axes=ENDS) if config.post_quant_conv else None
        )

    def encode(self, pixels: jax.Array) -> Gaussian:
        """The latents' distribution of pixels [B, H, W, C], FP32."""
        check_pixels(pixels, None, self.config.image_channels)
        moments = self.encoder(pixels.astype(self.config.dtype))
        moments = moments if self.quant_conv is None else self.quant_conv(moments)
        mean, logvariance = jnp.split(moments.astype(jnp.float32), 2, axis=-1)
        return Gaussian(mean, jnp.clip(logvariance, *_LOGVARIANCES))

    def decode(self, latents: jax.Array) -> jax.Array:
        """Pixels [B, H, W, C] of latents [B, h, w, Z] that are not scaled, FP32; some lie a little
        outside -1 … 1."""
        x = latents.astype(self.config.dtype)
        x = x if self.post_quant_conv is None else self.post_quant_conv(x)
        return self.decoder(x).astype(jnp.float32)

    def unscaled(self, latents: jax.Array) -> jax.Array:
        """Latents as the denoiser makes them, for `decode`."""
        return latents / self.config.scaling_factor + self.config.shift_factor

    def scaled(self, latents: jax.Array) -> jax.Array:
        """Latents of `encode`, for the denoiser."""
        return (latents - self.config.shift_factor) * self.config.scaling_factor


def _norm(channels: int, config: AutoencoderConfig) -> GroupNorm:
    return GroupNorm(channels, groups=config.groups, eps=_EPS, param_dtype=config.param_dtype)


def _residual(
    config: AutoencoderConfig, in_channels: int, channels: int, rngs: nnx.Rngs
) -> ResidualBlock:
    return ResidualBlock(
        in_channels,
        channels,
        time_dim=None,
        groups=config.groups,
        eps=_EPS,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )
