"""Dimensions and constants of a ResNet."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.settings import LAYERS, WIDTH, check_settings, setting

REDUCTION = 4  # by which a bottleneck's inner convolutions are narrower


@dataclass(frozen=True)
class ResNetConfig:
    """Every dimension and constant of the model; the default is ResNet-50.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_channels", "of the images", WIDTH, default=3)
    stem_channels: int = setting(
        "embedding_size", "channels after the first convolution", WIDTH, default=64
    )
    stage_channels: tuple[int, ...] = setting(
        "hidden_sizes", "channels at the end of each stage", WIDTH, default=(256, 512, 1024, 2048)
    )
    depths: tuple[int, ...] = setting(
        "depths", "blocks of each stage", LAYERS, default=(3, 4, 6, 3)
    )
    bottleneck: bool = True  # 1x1, 3x3, 1x1 convolutions; otherwise two 3x3
    act: str = setting("hidden_act", "after every convolution", default="relu")
    first_stage_stride: int = 1  # of its first block; that of the later stages is 2
    early_stride: bool = setting(
        "downsample_in_bottleneck",
        "a bottleneck's first convolution has the stride, not its second",
        default=False,
    )
    num_labels: int | None = None  # None = no classifier
    dtype: str = "float32"  # of activations and operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.stage_channels) != len(self.depths):
            raise ConfigError(
                f"there are channels for {len(self.stage_channels)} stages, but depths for "
                f"{len(self.depths)}"
            )
        narrow = [c for c in self.stage_channels if c % REDUCTION]
        if self.bottleneck and narrow:
            raise ConfigError(
                f"bottlenecks have channels in multiples of {REDUCTION}, not {narrow}"
            )
        activation(self.act)
