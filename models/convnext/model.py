"""Liu et al., "A ConvNet for the 2020s", 2022; Woo et al., "ConvNeXt V2", 2023.

Axis names: B batch, H height, W width, C channels, L labels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.convnext.config import ConvNextConfig
from models.layers.activations import activation
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel

_EPS = 1e-6  # of all norms but the last
_WINDOW = 7
_WIDER = 4  # by which a block is wider inside
_LAYER_SCALE = 1e-6  # at the start


class ResponseNorm(nnx.Module):
    """y = x + scale · x · |x| / mean(|x|) + bias, where |x| is a channel's norm over the image."""

    def __init__(self, make: LayerFactory, channels: int) -> None:
        self.scale = make.constant(split_channels=channels)
        self.bias = make.constant(split_channels=channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        size = jnp.sqrt(jnp.sum(x32 * x32, axis=(1, 2), keepdims=True))
        relative = size / (jnp.mean(size, axis=-1, keepdims=True) + _EPS)
        scale, bias = (part[...].astype(jnp.float32) for part in (self.scale, self.bias))
        return (x32 + scale * (x32 * relative) + bias).astype(x.dtype)


class Block(nnx.Module):
    """x + layer_scale · down(response_norm(act(up(norm(depthwise(x))))))."""

    def __init__(self, config: ConvNextConfig, channels: int, *, rngs: nnx.Rngs) -> None:
        make, wide = LayerFactory.of(config, rngs), _WIDER * channels
        self.act = config.act
        self.depthwise = make.conv(
            channels,
            channels,
            _WINDOW,
            padding=_WINDOW // 2,
            groups=channels,
            axes=("channels", "residual"),
        )
        self.norm = make.layer_norm(channels, _EPS)
        self.up = make.linear(channels, wide, axes=("dim", "split_channels"))
        self.response_norm = ResponseNorm(make, wide) if config.response_norm else None
        self.down = make.linear(wide, channels, axes=("split_channels", "dim"))
        self.layer_scale = (
            make.constant(_LAYER_SCALE, residual=channels) if config.layer_scale else None
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        y = activation(self.act)(self.up(self.norm(self.depthwise(x))))
        y = self.down(y if self.response_norm is None else self.response_norm(y))
        return x + (y if self.layer_scale is None else y * self.layer_scale[...].astype(y.dtype))


class Stage(nnx.Module):
    """A norm and a convolution that halves the image, unless it is the first; then blocks."""

    def __init__(
        self, config: ConvNextConfig, channels: tuple[int, int], depth: int, *, rngs: nnx.Rngs
    ) -> None:
        make, (before, width) = LayerFactory.of(config, rngs), channels
        self.norm = make.layer_norm(before, _EPS) if before else None
        self.resize = make.conv(before, width, 2, stride=2) if before else None
        self.blocks = nnx.List([Block(config, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.norm is not None and self.resize is not None:
            x = self.resize(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return x


class ConvNext(ImageModel):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: ConvNextConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, widths, size = LayerFactory.of(config, rngs), config.stage_channels, config.patch_size
        self.patches = make.conv(config.num_channels, widths[0], size, stride=size)
        self.patch_norm = make.layer_norm(widths[0], _EPS)
        pairs = zip((0, *widths), widths, strict=False)
        self.stages = nnx.List(
            [
                Stage(config, pair, depth, rngs=rngs)
                for pair, depth in zip(pairs, config.depths, strict=True)
            ]
        )
        self.norm = make.layer_norm(widths[-1], config.norm_eps)
        self.classifier = make.classifier(widths[-1], config.num_labels)

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        x = self.patch_norm(self.patches(x))
        for stage in self.stages:
            x = stage(x)
        return FeatureMap(x, self.norm(mean_of_places(x)))
