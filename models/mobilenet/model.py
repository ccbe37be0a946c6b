"""Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018, with the head of
Chen et al., "Encoder-Decoder with Atrous Separable Convolution", 2018, for segmentation.

Axis names: B batch, H height, W width, C channels, L labels.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.classifier import classify, make_classifier
from models.layers.conv_norm import ConvNorm, InvertedResidual
from models.layers.feature_map import FeatureMap
from models.layers.pixels import check_pixels
from models.mobilenet.config import MobileNetConfig

_MOMENTUM = 0.997  # of the running statistics, as published
_HEAD = 256  # channels of the head for segmentation
_HEAD_EPS = 1e-5


class Stem(nnx.Module):
    """A convolution that halves the image, then an inverted residual that may lack its first."""

    def __init__(self, config: MobileNetConfig, *, rngs: nnx.Rngs) -> None:
        wide, narrow = config.stem_channels
        shared = _settings(config, rngs)
        act = config.act
        self.first = ConvNorm(config.num_channels, wide, 3, stride=2, act=act, **shared)
        self.expand = None if config.plain_stem else ConvNorm(wide, wide, 1, act=act, **shared)
        self.depthwise = ConvNorm(wide, wide, 3, groups=wide, act=act, **shared)
        self.reduce = ConvNorm(wide, narrow, 1, axes=("hidden_dim", "dim"), **shared)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.first(x, train=train)
        x = x if self.expand is None else self.expand(x, train=train)
        return self.reduce(self.depthwise(x, train=train), train=train)


class SegmentationHead(nnx.Module):
    """Labels of every place, from what is there and from the mean of the image."""

    def __init__(
        self, config: MobileNetConfig, channels: int, num_labels: int, *, rngs: nnx.Rngs
    ) -> None:
        shared = _settings(config, rngs) | {"eps": _HEAD_EPS, "act": "relu"}
        self.pool = ConvNorm(channels, _HEAD, 1, **shared)
        self.place = ConvNorm(channels, _HEAD, 1, **shared)
        self.projection = ConvNorm(2 * _HEAD, _HEAD, 1, **shared)
        self.classifier = make_classifier(_HEAD, num_labels, **_dense(config, rngs))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [B, H, W, C] -> [B, H, W, L]."""
        pooled = self.pool(jnp.mean(x, axis=(1, 2), keepdims=True), train=train)
        place = self.place(x, train=train)
        both = jnp.concatenate([jnp.broadcast_to(pooled, place.shape), place], axis=-1)
        return classify(self.classifier, self.projection(both, train=train))


class MobileNet(nnx.Module):
    """Images to feature maps, and to logits of the image or of every place if the config has
    labels."""

    def __init__(self, config: MobileNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shapes = list(config.blocks())
        shared = _settings(config, rngs)
        self.stem = Stem(config, rngs=rngs)
        self.blocks = nnx.List(
            [
                InvertedResidual(
                    *shape.channels,
                    stride=shape.stride,
                    dilation=shape.dilation,
                    act=config.act,
                    **shared,
                )
                for shape in shapes
            ]
        )
        channels, labels = shapes[-1].channels[-1], config.num_labels
        self.last = ConvNorm(channels, config.last_channels, 1, act=config.act, **shared)
        self.segmentation = (
            SegmentationHead(config, channels, labels, rngs=rngs)
            if labels is not None and config.segments
            else None
        )
        labels = None if config.segments else labels
        self.classifier = make_classifier(config.last_channels, labels, **_dense(config, rngs))

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits, FP32, of pixels [B, H, W, C]: [B, L], or [B, H', W', L] of a smaller image."""
        if self.segmentation is not None:
            return self.segmentation(self._places(pixels, train), train=train)
        return classify(self.classifier, self.features(pixels, train=train).pooled)

    def features(self, pixels: jax.Array, *, train: bool = False) -> FeatureMap:
        """The features of pixels [B, H, W, C] of any size.

        With `train`, batch norms use the statistics of the batch and move the running ones.
        """
        x = self.last(self._places(pixels, train), train=train)
        return FeatureMap(x, jnp.mean(x.astype(jnp.float32), axis=(1, 2)).astype(x.dtype))

    def _places(self, pixels: jax.Array, train: bool) -> jax.Array:
        check_pixels(pixels, None, self.config.num_channels)
        x = self.stem(pixels.astype(self.config.dtype), train=train)
        for block in self.blocks:
            x = block(x, train=train)
        return x


def _settings(config: MobileNetConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    """What all layers have in common."""
    return {
        "padding": "SAME" if config.same_padding else None,
        "eps": config.norm_eps,
        "momentum": _MOMENTUM,
        **_dense(config, rngs),
    }


def _dense(config: MobileNetConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    return {
        "stddev": config.initializer_range,
        "param_dtype": config.param_dtype,
        "rngs": rngs,
    }
