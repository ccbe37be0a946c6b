"""Dimensions and constants of a ResNet."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.image_config import ImageConfig
from models.settings import EPS, check_counts, setting

REDUCTION = 4  # by which a bottleneck's inner convolutions are narrower


@dataclass(frozen=True)
class ResNetConfig(ImageConfig):
    """Every dimension and constant of the model; the default is ResNet-50.

    Raises ConfigError if the dimensions do not fit together.
    """

    stem_channels: int = setting("embedding_size", default=64)
    stage_channels: tuple[int, ...] = setting("hidden_sizes", default=(256, 512, 1024, 2048))
    depths: tuple[int, ...] = setting("depths", default=(3, 4, 6, 3))
    bottleneck: bool = True  # 1x1, 3x3, 1x1 convolutions; otherwise two 3x3
    act: str = setting("hidden_act", default="relu")
    first_stage_stride: int = 1  # of its first block; that of the later stages is 2
    early_stride: bool = setting("downsample_in_bottleneck", default=False)
    norm_eps: float = setting(None, "norm epsilon", EPS, default=1e-5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("stage_channels",), len(self.depths), "stage of depths")
        narrow = [c for c in self.stage_channels if c % REDUCTION]
        if self.bottleneck and narrow:
            raise ConfigError(
                f"stage_channels={self.stage_channels} must be multiples of {REDUCTION} for "
                f"bottlenecks, but {narrow} are not"
            )
