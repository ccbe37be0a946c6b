"""Mehta and Rastegari, "MobileViT", 2022, with the head of Chen et al., "Rethinking Atrous
Convolution", 2017, for segmentation.

Axis names: B batch, H height, W width, C channels, L labels.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.blocks import Block
from models.layers.conv_norm import InvertedResidual, rounded
from models.layers.factory import LayerFactory
from models.layers.resize import resize
from models.layers.segmentation import Labeller, SegmentationHead
from models.layers.windows import joined, windows
from models.mobilevit.config import CONVOLUTIONS, TRANSFORMERS, MobileViTConfig

_PATCHES_LAST = (0, 3, 4, 1, 2, 5)  # axes of windows, with those of windows last; its own inverse
_MULTIPLE = 8  # of which the channels inside an inverted residual are


class Transformer(nnx.Module):
    """Convolutions around transformer blocks, in which places of the same position in their patches
    see each other; what came in stands beside what they made in the last convolution."""

    def __init__(
        self, config: MobileViTConfig, stage: int, pair: tuple[int, int], make: LayerFactory
    ) -> None:
        channels, dim, window, act = pair[1], config.dims[stage], config.window, config.act
        shape = config.block(dim)
        self.patch = config.patch_size
        self.shrink = _make_inverted(config, pair, *config.shrinking(stage), make)
        self.before = make.conv_norm(channels, channels, window, act=act)
        self.widen = make.conv(channels, dim, 1, bias=False)
        self.blocks = nnx.List([Block(shape, rngs=make.rngs) for _ in range(TRANSFORMERS[stage])])
        self.norm = shape.norm()
        self.projection = make.conv_norm(dim, channels, 1, act=act)
        self.fusion = make.conv_norm(2 * channels, channels, window, act=act)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.shrink(x, train=train)
        y = self._run_blocks(self.widen(self.before(x, train=train)))
        y = self.projection(y, train=train)
        return self.fusion(jnp.concatenate([x, y], axis=-1), train=train)

    def _run_blocks(self, x: jax.Array) -> jax.Array:
        """The blocks, over x [B, H, W, C]; a size that patches do not divide is enlarged."""
        batch, *size, dim = x.shape
        rows, columns = (-(-length // self.patch) for length in size)
        x = resize(x, (rows * self.patch, columns * self.patch))
        x = windows(x, self.patch).transpose(_PATCHES_LAST).reshape(-1, rows * columns, dim)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).reshape(batch, self.patch, self.patch, rows, columns, dim)
        return resize(joined(x.transpose(_PATCHES_LAST)), (size[0], size[1]))


class MobileViT(Labeller):
    """Inverted residuals, then transformers."""

    def __init__(self, config: MobileViTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, act, labels = LayerFactory.of(config, rngs), config.act, config.num_labels
        channels, convolutions = config.channels, len(CONVOLUTIONS)
        pairs = list(pairwise(channels[:-1]))
        self.stem = make.conv_norm(config.num_channels, channels[0], 3, stride=2, act=act)
        self.convolutions = nnx.List(
            [
                _stage(config, pair, count, 1 if i == 0 else 2, make)
                for i, (pair, count) in enumerate(zip(pairs, CONVOLUTIONS, strict=False))
            ]
        )
        self.transformers = nnx.List(
            [
                Transformer(config, stage, pair, make)
                for stage, pair in enumerate(pairs[convolutions:])
            ]
        )
        self.last = (
            None if config.segments else make.conv_norm(channels[-2], channels[-1], 1, act=act)
        )
        width = config.head_channels
        self.segmentation = (
            SegmentationHead(
                partial(make.conv_norm, act="relu"),
                (channels[-2], width),
                make.classifier(width, labels),
                dilations=config.dilations,
            )
            if config.segments
            else None
        )
        labels = None if config.segments else labels
        self.classifier = make.classifier(channels[-1], labels)

    def places(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = self.stem(x, train=train)
        for stage in self.convolutions:
            for layer in stage:
                x = layer(x, train=train)
        for transformer in self.transformers:
            x = transformer(x, train=train)
        return x


def _stage(
    config: MobileViTConfig, pair: tuple[int, int], count: int, stride: int, make: LayerFactory
) -> nnx.List[InvertedResidual]:
    first = _make_inverted(config, pair, stride, 1, make)
    same = pair[1], pair[1]
    return nnx.List([first, *(_make_inverted(config, same, 1, 1, make) for _ in range(count - 1))])


def _make_inverted(
    config: MobileViTConfig, pair: tuple[int, int], stride: int, dilation: int, make: LayerFactory
) -> InvertedResidual:
    before, after = pair
    wide = rounded(round(before * config.expand_ratio), _MULTIPLE, _MULTIPLE)
    return InvertedResidual(
        make.conv_norm, (before, wide, after), stride=stride, dilation=dilation, act=config.act
    )
