"""He et al., "Deep Residual Learning for Image Recognition", 2016.

Axis names: B batch, H height, W width, C channels, L labels.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import jax
from flax import nnx

from models.layers.activations import activation
from models.layers.conv_norm import ConvNorm
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel
from models.resnet.config import REDUCTION, ResNetConfig


def _conv_norm(
    config: ResNetConfig,
    channels: tuple[int, int],  # before and after
    window: int,
    stride: int,
    rngs: nnx.Rngs,
) -> ConvNorm:
    """A convolution and a norm; the channels of both are split."""
    # He et al., "Delving Deep into Rectifiers", 2015, by the outputs of the window.
    stddev = math.sqrt(2 / (channels[1] * window * window))
    make = LayerFactory(stddev, config.param_dtype, rngs)
    return make.conv_norm(*channels, window, stride=stride, eps=config.norm_eps)


class Block(nnx.Module):
    """act(shortcut(x) + convolutions(x)): two 3x3 convolutions, or three of which the first and the
    last are 1x1 and those between them narrower."""

    def __init__(
        self, config: ResNetConfig, in_channels: int, channels: int, stride: int, rngs: nnx.Rngs
    ) -> None:
        self.act = config.act
        self.shortcut = (
            _conv_norm(config, (in_channels, channels), 1, stride, rngs)
            if in_channels != channels or stride != 1
            else None
        )
        self.layers = nnx.List(
            [
                _conv_norm(config, pair, window, step, rngs)
                for pair, window, step in _convolutions(config, in_channels, channels, stride)
            ]
        )

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        act = activation(self.act)
        residual = x if self.shortcut is None else self.shortcut(x, train=train)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            # As published, the convolutions inside a block are followed by a ReLU; `act` is what
            # follows the sum.
            x = layer(x, train=train) if i == last else jax.nn.relu(layer(x, train=train))
        return act(x + residual)


def _convolutions(
    config: ResNetConfig, in_channels: int, channels: int, stride: int
) -> Sequence[tuple[tuple[int, int], int, int]]:
    """(channels before and after, window, stride) of each convolution of a block."""
    if not config.bottleneck:
        return [((in_channels, channels), 3, stride), ((channels, channels), 3, 1)]
    inner = channels // REDUCTION
    strides = (stride, 1, 1) if config.early_stride else (1, stride, 1)
    pairs = pairwise((in_channels, inner, inner, channels))
    return list(zip(pairs, (1, 3, 1), strides, strict=True))


class ResNet(ImageModel):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.stem = _conv_norm(config, (config.num_channels, config.stem_channels), 7, 2, rngs)
        widths = (config.stem_channels, *config.stage_channels)
        self.stages = nnx.List(
            [
                _stage(config, widths[i], widths[i + 1], depth, _stride(config, i), rngs)
                for i, depth in enumerate(config.depths)
            ]
        )
        make = LayerFactory(1 / math.sqrt(widths[-1]), config.param_dtype, rngs)
        self.classifier = make.classifier(widths[-1], config.num_labels)

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        last = self.maps(x, train=train)[-1]
        return FeatureMap(last, mean_of_places(last))

    def maps(self, x: jax.Array, *, train: bool = False) -> list[jax.Array]:
        """The feature map of every stage; arguments as of `see`."""
        x = activation(self.config.act)(self.stem(x, train=train))
        x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        maps = []
        for stage in self.stages:
            for block in stage:
                x = block(x, train)
            maps.append(x)
        return maps


def _stride(config: ResNetConfig, stage: int) -> int:
    return config.first_stage_stride if stage == 0 else 2


def _stage(
    config: ResNetConfig, in_channels: int, channels: int, depth: int, stride: int, rngs: nnx.Rngs
) -> nnx.List[Block]:
    first = Block(config, in_channels, channels, stride, rngs)
    return nnx.List(
        [first, *(Block(config, channels, channels, 1, rngs) for _ in range(depth - 1))]
    )
