"""Dimensions and constants of a MobileNetV2."""

from collections.abc import Iterator
from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.image_config import ImageConfig
from models.layers.conv_norm import rounded
from models.settings import setting

# Channels before and after each block of the published network, and the strides.
_CHANNELS = (16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
_STRIDES = (2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)
_STEM, _LAST = 32, 1280


@dataclass(frozen=True)
class BlockShape:
    """An inverted residual: channels before, inside and after, and how its window moves."""

    channels: tuple[int, int, int]
    stride: int
    dilation: int


@dataclass(frozen=True)
class MobileNetConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is the published network.

    Raises ConfigError if the dimensions do not fit together.
    """

    depth_multiplier: float = setting("depth_multiplier", default=1.0)
    multiple: int = setting("depth_divisible_by", default=8)
    least: int = setting("min_depth", default=8)
    expand_ratio: float = setting("expand_ratio", default=6.0)
    output_stride: int = setting("output_stride", default=32)
    plain_stem: bool = setting("first_layer_is_expansion", default=True)
    wide_end: bool = setting("finegrained_output", default=True)
    act: str = setting("hidden_act", default="relu6")
    same_padding: bool = setting("tf_padding", default=True)
    norm_eps: float = setting("layer_norm_eps", default=0.001)
    segments: bool = False  # the head labels every place, not the image

    def scaled(self, channels: int) -> int:
        """A number of channels of the published network, in this one."""
        return rounded(round(channels * self.depth_multiplier), self.multiple, self.least)

    @property
    def stem_channels(self) -> tuple[int, int]:
        """The channels after the stem's first convolution and after all."""
        return self.scaled(_STEM), self.scaled(_CHANNELS[0])

    @property
    def last_channels(self) -> int:
        stays = self.wide_end and self.depth_multiplier < 1
        return _LAST if stays else self.scaled(_LAST)

    def blocks(self) -> Iterator[BlockShape]:
        """Once the image is as small as it may become, windows are spread instead of moved on."""
        reached, spread = 2, 1
        for i, stride in enumerate(_STRIDES):
            before, after = self.scaled(_CHANNELS[i]), self.scaled(_CHANNELS[i + 1])
            inside = rounded(round(before * self.expand_ratio), self.multiple, self.least)
            channels = (before, inside, after)
            if reached == self.output_stride:
                yield BlockShape(channels, 1, spread)
                spread *= stride
            else:
                yield BlockShape(channels, stride, 1)
                reached *= stride
