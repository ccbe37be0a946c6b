"""Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018, with the head of
Chen et al., "Encoder-Decoder with Atrous Separable Convolution", 2018, for segmentation.

Axis names: B batch, H height, W width, C channels, L labels.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

from models.layers.conv_norm import InvertedResidual
from models.layers.factory import LayerFactory
from models.layers.segmentation import Labeller, SegmentationHead
from models.mobilenet.config import MobileNetConfig

_MOMENTUM = 0.997  # of the running statistics, as published
_HEAD = 256  # channels of the head for segmentation
_HEAD_EPS = 1e-5


class Stem(nnx.Module):
    """A convolution that halves the image, then an inverted residual that may lack its first."""

    def __init__(self, config: MobileNetConfig, conv_norm: Any) -> None:
        wide, narrow = config.stem_channels
        act = config.act
        self.first = conv_norm(config.num_channels, wide, 3, stride=2, act=act)
        self.expand = None if config.plain_stem else conv_norm(wide, wide, 1, act=act)
        self.depthwise = conv_norm(wide, wide, 3, groups=wide, act=act)
        self.reduce = conv_norm(wide, narrow, 1, axes=("split_channels", "dim"))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.first(x, train=train)
        x = x if self.expand is None else self.expand(x, train=train)
        return self.reduce(self.depthwise(x, train=train), train=train)


class MobileNet(Labeller):
    """A stem, inverted residuals and a last convolution."""

    def __init__(self, config: MobileNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, act, labels = LayerFactory.of(config, rngs), config.act, config.num_labels
        conv_norm = partial(
            make.conv_norm,
            padding="SAME" if config.same_padding else None,
            eps=config.norm_eps,
            momentum=_MOMENTUM,
        )
        self.stem = Stem(config, conv_norm)
        shapes = list(config.blocks())
        self.blocks = nnx.List(
            [
                InvertedResidual(
                    conv_norm, shape.channels, stride=shape.stride, dilation=shape.dilation, act=act
                )
                for shape in shapes
            ]
        )
        channels = shapes[-1].channels[-1]
        self.last = conv_norm(channels, config.last_channels, 1, act=act)
        self.segmentation = (
            SegmentationHead(
                partial(conv_norm, eps=_HEAD_EPS, act="relu"),
                (channels, _HEAD),
                make.classifier(_HEAD, labels),
                mean_first=True,
            )
            if config.segments
            else None
        )
        labels = None if config.segments else labels
        self.classifier = make.classifier(config.last_channels, labels)

    def places(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.stem(x, train=train)
        for block in self.blocks:
            x = block(x, train=train)
        return x
