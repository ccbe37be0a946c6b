"""The convolutions in front of the transformer of a hybrid DPT: a ResNet of standardised kernels.

Kolesnikov et al., "Big Transfer", 2020. Axis names: B batch, H rows, W columns, C channels.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError
from models.layers.conv_norm import rounded
from models.layers.convolution import Conv
from models.layers.norms import GroupNorm
from models.settings import WIDTH, check_counts, setting

STRIDE = 16  # of the last feature map, in pixels
_EPS, _KERNEL_EPS = 1e-5, 1e-8  # of norms of channels, and of kernels
_NARROWER, _MULTIPLE = 0.25, 8  # the channels inside a block: a part of its own, in multiples


@dataclass(frozen=True, kw_only=True)
class StemConfig:
    """The dimensions of the convolutions, under the names of a BiT's config.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_channels", default=3)
    first_channels: int = setting("embedding_size", default=64)
    stage_channels: tuple[int, ...] = setting("hidden_sizes", default=(256, 512, 1024))
    depths: tuple[int, ...] = setting("depths", default=(3, 4, 9))
    groups: int = setting("num_groups", "groups of channels in norms", WIDTH, default=32)

    def __post_init__(self) -> None:
        check_counts(self, ("stage_channels", "depths"), 3, "feature map")
        insides = [rounded(_NARROWER * c, _MULTIPLE, _MULTIPLE) for c in self.stage_channels]
        wrong = [
            c for c in (self.first_channels, *insides, *self.stage_channels) if c % self.groups
        ]
        if wrong:
            raise ConfigError(f"channels {wrong} are not multiples of groups={self.groups}")


class _Maker:
    """Makes layers of one stem."""

    def __init__(self, config: StemConfig, stddev: float, param_dtype: str, rngs: nnx.Rngs) -> None:
        self.config, self.stddev, self.param_dtype, self.rngs = config, stddev, param_dtype, rngs

    def conv(self, before: int, after: int, window: int, stride: int = 1) -> "StandardisedConv":
        return StandardisedConv(
            before,
            after,
            (window, window),
            stride=stride,
            padding="SAME",
            bias=False,
            axes=("channels", "residual"),
            stddev=self.stddev,
            param_dtype=self.param_dtype,
            rngs=self.rngs,
        )

    def norm(self, channels: int) -> GroupNorm:
        return GroupNorm(
            channels, groups=self.config.groups, eps=_EPS, param_dtype=self.param_dtype
        )


class StandardisedConv(Conv):
    """A convolution whose kernel has mean 0 and variance 1 for each channel that it makes. Qiao et
    al., "Weight Standardization", 2019."""

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(jnp.float32)
        axes = tuple(range(kernel.ndim - 1))
        centred = kernel - jnp.mean(kernel, axis=axes, keepdims=True)
        variance = jnp.mean(centred * centred, axis=axes, keepdims=True)
        return self.convolve(x, centred * jax.lax.rsqrt(variance + _KERNEL_EPS))


class StemBlock(nnx.Module):
    """relu(shortcut(x) + three convolutions), each with a norm."""

    def __init__(self, make: _Maker, before: int, after: int, stride: int, *, first: bool) -> None:
        inside = rounded(_NARROWER * after, _MULTIPLE, _MULTIPLE)
        pairs = ((before, inside, 1), (inside, inside, 3), (inside, after, 1))
        self.convolutions = nnx.List(
            [
                make.conv(*pair, stride=stride if number == 1 else 1)
                for number, pair in enumerate(pairs)
            ]
        )
        self.norms = nnx.List([make.norm(channels) for _, channels, _ in pairs])
        self.shortcut = make.conv(before, after, 1, stride) if first else None
        self.shortcut_norm = make.norm(after) if first else None

    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(self.shortcut(x))
        for number, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = norm(convolution(x))
            x = jax.nn.relu(x) if number < 2 else x
        return jax.nn.relu(x + shortcut)


class Stem(nnx.Module):
    """Images to the feature maps of three stages."""

    def __init__(
        self, config: StemConfig, *, stddev: float, param_dtype: str, rngs: nnx.Rngs
    ) -> None:
        make = _Maker(config, stddev, param_dtype, rngs)
        self.convolution = make.conv(config.num_channels, config.first_channels, 7, 2)
        self.norm = make.norm(config.first_channels)
        widths = (config.first_channels, *config.stage_channels)
        self.stages = nnx.List(
            [
                nnx.List(
                    [
                        StemBlock(
                            make,
                            widths[stage + (block > 0)],
                            widths[stage + 1],
                            2 if stage and not block else 1,
                            first=not block,
                        )
                        for block in range(depth)
                    ]
                )
                for stage, depth in enumerate(config.depths)
            ]
        )

    def __call__(self, pixels: jax.Array) -> list[jax.Array]:
        """Feature maps [B, H, W, C] of pixels [B, 16 · H, 16 · W, channels], the last of which is
        the smallest."""
        x = jax.nn.relu(self.norm(self.convolution(pixels)))
        x = nnx.max_pool(x, (3, 3), (2, 2), "SAME")
        maps = []
        for stage in self.stages:
            for block in stage:
                x = block(x)
            maps.append(x)
        return maps
