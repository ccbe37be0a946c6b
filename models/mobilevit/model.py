"""Mehta and Rastegari, "MobileViT", 2022, with the head of Chen et al., "Rethinking Atrous
Convolution", 2017, for segmentation.

Axis names: B batch, H height, W width, C channels, L labels.
"""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.blocks import Block
from models.layers.classifier import classify, make_classifier
from models.layers.conv_norm import ConvNorm, InvertedResidual, rounded
from models.layers.convolution import Conv
from models.layers.feature_map import FeatureMap
from models.layers.pixels import check_pixels
from models.layers.resize import resize
from models.mobilevit.config import CONVOLUTIONS, TRANSFORMERS, MobileViTConfig

_MULTIPLE = 8  # of which the channels inside an inverted residual are


class Transformer(nnx.Module):
    """Convolutions around transformer blocks, in which places of the same position in their patches
    see each other; what came in stands beside what they made in the last convolution."""

    def __init__(
        self, config: MobileViTConfig, stage: int, pair: tuple[int, int], *, rngs: nnx.Rngs
    ) -> None:
        shared, channels, dim = _settings(config, rngs), pair[1], config.dims[stage]
        shape = config.block(dim)
        self.patch = config.patch_size
        self.shrink = _inverted(config, pair, *config.shrinking(stage), rngs)
        self.before = ConvNorm(channels, channels, config.window, act=config.act, **shared)
        self.widen = Conv(
            channels,
            dim,
            (1, 1),
            bias=False,
            stddev=config.initializer_range,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.blocks = nnx.List([Block(shape, rngs=rngs) for _ in range(TRANSFORMERS[stage])])
        self.norm = shape.norm()
        self.projection = ConvNorm(dim, channels, 1, act=config.act, **shared)
        self.fusion = ConvNorm(2 * channels, channels, config.window, act=config.act, **shared)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.shrink(x, train=train)
        y = self._seen(self.widen(self.before(x, train=train)))
        y = self.projection(y, train=train)
        return self.fusion(jnp.concatenate([x, y], axis=-1), train=train)

    def _seen(self, x: jax.Array) -> jax.Array:
        """The blocks, over x [B, H, W, C]; a size that patches do not divide is enlarged."""
        batch, *size, dim = x.shape
        rows, columns = (-(-length // self.patch) for length in size)
        x = resize(x, (rows * self.patch, columns * self.patch))
        x = x.reshape(batch, rows, self.patch, columns, self.patch, dim)
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(-1, rows * columns, dim)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).reshape(batch, self.patch, self.patch, rows, columns, dim)
        x = x.transpose(0, 3, 1, 4, 2, 5)
        x = x.reshape(batch, rows * self.patch, columns * self.patch, dim)
        return resize(x, (size[0], size[1]))


class SegmentationHead(nnx.Module):
    """Labels of every place, from windows of several sizes and from the mean of the image."""

    def __init__(self, config: MobileViTConfig, labels: int, *, rngs: nnx.Rngs) -> None:
        before, after = config.channels[-2], config.head_channels
        shared = _settings(config, rngs) | {"act": "relu"}
        self.windows = nnx.List(
            [
                ConvNorm(before, after, 1, **shared),
                *(ConvNorm(before, after, 3, dilation=d, **shared) for d in config.dilations),
            ]
        )
        self.pool = ConvNorm(before, after, 1, **shared)
        self.projection = ConvNorm((len(self.windows) + 1) * after, after, 1, **shared)
        self.classifier = make_classifier(after, labels, **_settings(config, rngs))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [B, H, W, C] -> [B, H, W, L]."""
        seen = [window(x, train=train) for window in self.windows]
        pooled = self.pool(jnp.mean(x, axis=(1, 2), keepdims=True), train=train)
        both = jnp.concatenate([*seen, jnp.broadcast_to(pooled, seen[0].shape)], axis=-1)
        return classify(self.classifier, self.projection(both, train=train))


class MobileViT(nnx.Module):
    """Images to feature maps, and to logits of the image or of every place if the config has
    labels."""

    def __init__(self, config: MobileViTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shared, act, labels = _settings(config, rngs), config.act, config.num_labels
        channels, convolutions = config.channels, len(CONVOLUTIONS)
        pairs = list(pairwise(channels[:-1]))
        self.stem = ConvNorm(config.num_channels, channels[0], 3, stride=2, act=act, **shared)
        self.convolutions = nnx.List(
            [
                _stage(config, pair, count, 1 if i == 0 else 2, rngs)
                for i, (pair, count) in enumerate(zip(pairs, CONVOLUTIONS, strict=False))
            ]
        )
        self.transformers = nnx.List(
            [
                Transformer(config, stage, pair, rngs=rngs)
                for stage, pair in enumerate(pairs[convolutions:])
            ]
        )
        self.last = (
            None if config.segments else ConvNorm(channels[-2], channels[-1], 1, act=act, **shared)
        )
        self.segmentation = (
            SegmentationHead(config, labels, rngs=rngs)
            if labels is not None and config.segments
            else None
        )
        labels = None if config.segments else labels
        self.classifier = make_classifier(channels[-1], labels, **_settings(config, rngs))

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits, FP32, of pixels [B, H, W, C]: [B, L], or [B, H', W', L] of a smaller image."""
        if self.segmentation is not None:
            return self.segmentation(self._places(pixels, train), train=train)
        return classify(self.classifier, self.features(pixels, train=train).pooled)

    def features(self, pixels: jax.Array, *, train: bool = False) -> FeatureMap:
        """The features of pixels [B, H, W, C] of any size.

        With `train`, batch norms use the statistics of the batch and move the running ones.
        """
        x = self._places(pixels, train)
        x = x if self.last is None else self.last(x, train=train)
        return FeatureMap(x, jnp.mean(x.astype(jnp.float32), axis=(1, 2)).astype(x.dtype))

    def _places(self, pixels: jax.Array, train: bool) -> jax.Array:
        check_pixels(pixels, None, self.config.num_channels)
        x = self.stem(pixels.astype(self.config.dtype), train=train)
        for stage in self.convolutions:
            for layer in stage:
                x = layer(x, train=train)
        for transformer in self.transformers:
            x = transformer(x, train=train)
        return x


def _stage(
    config: MobileViTConfig, pair: tuple[int, int], count: int, stride: int, rngs: nnx.Rngs
) -> nnx.List[InvertedResidual]:
    first = _inverted(config, pair, stride, 1, rngs)
    same = pair[1], pair[1]
    return nnx.List([first, *(_inverted(config, same, 1, 1, rngs) for _ in range(count - 1))])


def _inverted(
    config: MobileViTConfig, pair: tuple[int, int], stride: int, dilation: int, rngs: nnx.Rngs
) -> InvertedResidual:
    before, after = pair
    return InvertedResidual(
        before,
        rounded(round(before * config.expand_ratio), _MULTIPLE, _MULTIPLE),
        after,
        stride=stride,
        dilation=dilation,
        act=config.act,
        **_settings(config, rngs),
    )


def _settings(config: MobileViTConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    """What all layers have in common."""
    return {
        "stddev": config.initializer_range,
        "param_dtype": config.param_dtype,
        "rngs": rngs,
    }
