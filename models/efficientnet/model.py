"""Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019.

Axis names: B batch, H height, W width, C channels, L labels.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

from models.efficientnet.config import BlockShape, EfficientNetConfig
from models.layers.activations import activation
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel


class Squeeze(nnx.Module):
    """x with each channel weighed by what the means of all say. Hu et al., "Squeeze-and-Excitation
    Networks", 2018."""

    def __init__(self, channels: int, squeezed: int, act: str, make: LayerFactory) -> None:
        self.act = act
        self.reduce = make.linear(channels, squeezed, axes=("split_channels", "dim"))
        self.expand = make.linear(squeezed, channels, axes=("dim", "split_channels"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, H, W, C] -> [B, H, W, C]."""
        weights = activation(self.act)(self.reduce(mean_of_places(x)))
        return x * jax.nn.sigmoid(self.expand(weights))[:, None, None]


class Block(nnx.Module):
    """A narrow image becomes wide unless it is already, each channel is convolved by itself and
    weighed, and the image becomes narrow again."""

    def __init__(self, shape: BlockShape, act: str, conv_norm: Any, make: LayerFactory) -> None:
        before, wide, after = shape.channels
        self.has_shortcut = shape.has_shortcut
        outwards = partial(conv_norm, axes=("dim", "split_channels"), act=act)
        self.expand = outwards(before, wide, 1) if wide != before else None
        half = shape.window // 2
        self.depthwise = conv_norm(
            wide,
            wide,
            shape.window,
            stride=shape.stride,
            padding=half if shape.is_centred else (half - 1, half),
            groups=wide,
            act=act,
        )
        self.squeeze = Squeeze(wide, shape.squeezed, act, make)
        self.reduce = conv_norm(wide, after, 1, axes=("split_channels", "dim"))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        y = x if self.expand is None else self.expand(x, train=train)
        y = self.squeeze(self.depthwise(y, train=train))
        y = self.reduce(y, train=train)
        return x + y if self.has_shortcut else y


class EfficientNet(ImageModel):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: EfficientNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory.of(config, rngs)
        conv_norm = partial(make.conv_norm, eps=config.norm_eps, momentum=config.momentum)
        stem, shapes = config.stem_channels, list(config.blocks())
        self.stem = conv_norm(
            config.num_channels, stem, 3, stride=2, padding=(0, 1), act=config.act
        )
        self.blocks = nnx.List([Block(shape, config.act, conv_norm, make) for shape in shapes])
        last = shapes[-1].channels[-1], config.last_channels
        self.last = conv_norm(*last, 1, act=config.act)
        self.classifier = make.classifier(config.last_channels, config.num_labels)

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        x = self.stem(x, train=train)
        for block in self.blocks:
            x = block(x, train=train)
        x = self.last(x, train=train)
        return FeatureMap(x, mean_of_places(x))
