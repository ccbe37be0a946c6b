"""Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
2015, as torchvision has it.

Axis names: B batch, H height, W width, C channels, L labels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import InputError
from models.layers.convolution import Conv
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.pixels import check_pixels
from models.settings import LAYERS, WIDTH, check_settings, setting
from models.weights.rows import dense_rows
from models.weights.table import KeyTable, Row
from models.weights.transforms import CONV_2D

_PLACES = 7  # height and width of what the classifier sees
DEPTHS = {
    "VGG11": (1, 1, 2, 2, 2),
    "VGG13": (2, 2, 2, 2, 2),
    "VGG16": (2, 2, 3, 3, 3),
    "VGG19": (2, 2, 4, 4, 4),
}
"""Convolutions of each stage."""


@dataclass(frozen=True)
class VGGConfig:
    """Every dimension; the default is VGG16. Raises ConfigError for sizes out of range."""

    num_channels: int = setting(None, "channels of the input image", WIDTH, default=3)
    channels: tuple[int, ...] = setting(
        None, "channels of each stage", WIDTH, default=(64, 128, 256, 512, 512)
    )
    depths: tuple[int, ...] = setting(
        None, "convolutions of each stage", LAYERS, default=DEPTHS["VGG16"]
    )
    hidden_dim: int = setting(None, "width of the classifier", WIDTH, default=4096)
    num_labels: int = setting(None, "number of classes", WIDTH, default=1000)
    dtype: str = "float32"  # of activations and operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def image_size(self) -> int:
        """Height and width of the images: every stage halves them."""
        return _PLACES << len(self.channels)


class VGG(nnx.Module):
    """Stages of 3x3 convolutions with ReLUs, each with a maximum of four places at its end; then
    three linear layers."""

    def __init__(self, config: VGGConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        widths = (config.num_channels, *config.channels)
        self.stages = nnx.List(
            [
                nnx.List(
                    [_conv(config, before if i == 0 else width, width, rngs) for i in range(depth)]
                )
                for (before, width), depth in zip(pairwise(widths), config.depths, strict=True)
            ]
        )
        sizes = (config.channels[-1] * _PLACES**2, config.hidden_dim, config.hidden_dim)
        self.hidden = nnx.List(
            [
                _linear(config, {axes[0]: before}, {axes[1]: after}, rngs)
                for (before, after), axes in zip(pairwise(sizes), _HIDDEN_AXES, strict=True)
            ]
        )
        self.classifier = _linear(
            config, {"dim": config.hidden_dim}, {"label": config.num_labels}, rngs
        )

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits [B, L] of pixels [B, H, W, C], FP32."""
        config, size = self.config, self.config.image_size
        check_pixels(pixels, None, config.num_channels)
        if pixels.shape[1:3] != (size, size):
            raise InputError(
                f"the image is {pixels.shape[1]} x {pixels.shape[2]} pixels, but this VGG sees "
                f"{size} x {size}"
            )
        x = pixels.astype(config.dtype)
        for stage in self.stages:
            for conv in stage:
                x = jax.nn.relu(conv(x))
            x = nnx.max_pool(x, (2, 2), (2, 2))
        x = jnp.moveaxis(x, -1, 1).reshape(len(x), -1)  # as the file has it: channels first
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.classifier(x).astype(jnp.float32)


_HIDDEN_AXES = (("dim", "hidden_dim"), ("hidden_dim", "dim"))


def key_table(config: VGGConfig) -> KeyTable:
    """torchvision's tensors: layers are counted, with their ReLUs and maxima, or dropouts."""
    return KeyTable(tuple(_rows(config)))


def _rows(config: VGGConfig) -> Iterator[Row]:
    number = 0
    for stage, depth in enumerate(config.depths):
        for i in range(depth):
            yield from dense_rows(f"features.{number}", f"stages.{stage}.{i}", CONV_2D)
            number += 2
        number += 1
    yield from dense_rows("classifier.0", "hidden.0")
    yield from dense_rows("classifier.3", "hidden.1")
    yield from dense_rows("classifier.6", "classifier")


def _conv(config: VGGConfig, channels: int, out_channels: int, rngs: nnx.Rngs) -> Conv:
    # He et al., "Delving Deep into Rectifiers", 2015, by the outputs of the window.
    stddev = math.sqrt(2 / (9 * out_channels))
    make = LayerFactory(stddev, config.param_dtype, rngs)
    return make.conv(channels, out_channels, 3, padding=1)


def _linear(
    config: VGGConfig, inputs: dict[str, int], outputs: dict[str, int], rngs: nnx.Rngs
) -> Linear:
    return LayerFactory(0.01, config.param_dtype, rngs).dense(inputs, outputs)
