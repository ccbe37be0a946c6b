"""Dimensions and constants of an EfficientNet."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.image_config import ImageConfig
from models.layers.conv_norm import rounded
from models.settings import COUNT, EPS, POSITIVE, WIDTH, check_counts, setting

_STEM, _LAST = 32, 1280  # channels after the first convolution and the last one, before scaling


@dataclass(frozen=True)
class BlockShape:
    """The dimensions of one inverted residual."""

    channels: tuple[int, int, int]  # before, inside and after
    window: int
    stride: int
    squeezed: int  # numbers that the weights of channels are made of
    has_shortcut: bool
    is_centred: bool  # the window moves over as many zeros on both sides


@dataclass(frozen=True)
class EfficientNetConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is EfficientNet-B7.

    Raises ConfigError if the dimensions do not fit together.
    """

    width: float = setting("width_coefficient", "factor on all channels", POSITIVE, default=2.0)
    depth: float = setting(
        "depth_coefficient", "factor on the blocks of stages", POSITIVE, default=3.1
    )
    multiple: int = setting(
        "depth_divisor", "number that channels are multiples of", WIDTH, default=8
    )
    windows: tuple[int, ...] = setting(
        "kernel_sizes", "window of each stage", WIDTH, default=(3, 3, 5, 3, 5, 5, 3)
    )
    channels_before: tuple[int, ...] = setting(
        "in_channels", "channels before each stage", WIDTH, default=(32, 16, 24, 40, 80, 112, 192)
    )
    channels_after: tuple[int, ...] = setting(
        "out_channels", "channels after each stage", WIDTH, default=(16, 24, 40, 80, 112, 192, 320)
    )
    centred: tuple[int, ...] = setting(
        "depthwise_padding", "blocks with as many zeros on both sides", COUNT, default=()
    )
    strides: tuple[int, ...] = setting(
        "strides", "stride of each stage", WIDTH, default=(1, 2, 2, 2, 1, 2, 1)
    )
    repeats: tuple[int, ...] = setting(
        "num_block_repeats", "blocks of each stage", WIDTH, default=(1, 2, 2, 3, 3, 4, 1)
    )
    expansions: tuple[int, ...] = setting(
        "expand_ratios", "expansion of each stage", WIDTH, default=(1, 6, 6, 6, 6, 6, 6)
    )
    squeeze: float = setting(
        "squeeze_expansion_ratio",
        "part of the channels that weights are made of",
        POSITIVE,
        default=0.25,
    )
    act: str = setting("hidden_act", default="swish")
    last_channels: int = setting(
        "hidden_dim", "channels of the last convolution", WIDTH, default=2560
    )
    norm_eps: float = setting("batch_norm_eps", "epsilon of batch norms", EPS, default=0.001)
    momentum: float = setting("batch_norm_momentum", "momentum of batch norms", EPS, default=0.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        stages = ("windows", "channels_after", "strides", "repeats", "expansions")
        check_counts(self, stages, len(self.channels_before), "stage of channels_before")

    def scaled(self, channels: int) -> int:
        """A number of channels of the network without coefficients, in this one."""
        return rounded(channels * self.width, self.multiple, self.multiple)

    @property
    def stem_channels(self) -> int:
        return self.scaled(_STEM)

    def blocks(self) -> Iterator[BlockShape]:
        """The blocks of all stages, in their order."""
        number = 0
        for stage, repeats in enumerate(self.repeats):
            after = self.scaled(self.channels_after[stage])
            for i in range(math.ceil(self.depth * repeats)):
                before = after if i else self.scaled(self.channels_before[stage])
                stride = 1 if i else self.strides[stage]
                yield BlockShape(
                    channels=(before, before * self.expansions[stage], after),
                    window=self.windows[stage],
                    stride=stride,
                    squeezed=max(1, int(before * self.squeeze)),
                    has_shortcut=i > 0,
                    is_centred=stride == 1 or number in self.centred,
                )
                number += 1
