"""Dimensions and constants of a ConvNeXt."""

from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.image_config import ImageConfig
from models.settings import check_counts, setting


@dataclass(frozen=True)
class ConvNextConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is ConvNeXt-T.

    Raises ConfigError if the dimensions do not fit together.
    """

    patch_size: tuple[int, int] = setting("patch_size", default=(4, 4))
    stage_channels: tuple[int, ...] = setting("hidden_sizes", default=(96, 192, 384, 768))
    depths: tuple[int, ...] = setting("depths", default=(3, 3, 9, 3))
    act: str = setting("hidden_act", default="gelu")
    norm_eps: float = setting("layer_norm_eps", default=1e-12)
    layer_scale: bool = True  # a factor per channel of what a block adds
    response_norm: bool = False  # V2: a norm of channels by their magnitudes over the image

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("stage_channels",), len(self.depths), "stage of depths")
