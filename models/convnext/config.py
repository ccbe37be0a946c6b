"""Dimensions and constants of a ConvNeXt."""

from dataclasses import dataclass

from models.image_config import ImageConfig
from models.settings import ACTIVATION, EPS, LAYERS, WIDTH, check_counts, setting


@dataclass(frozen=True)
class ConvNextConfig(ImageConfig):
    """Every dimension and constant of the model; the default is ConvNeXt-T.

    Raises ConfigError if the dimensions do not fit together.
    """

    patch_size: tuple[int, int] = setting(
        "patch_size", "patch height and width, in pixels", WIDTH, default=(4, 4)
    )
    stage_channels: tuple[int, ...] = setting(
        "hidden_sizes", "channels of each stage", WIDTH, default=(96, 192, 384, 768)
    )
    depths: tuple[int, ...] = setting(
        "depths", "number of blocks in each stage", LAYERS, default=(3, 3, 9, 3)
    )
    act: str = setting(
        "hidden_act", "activation between the linear layers of a block", ACTIVATION, default="gelu"
    )
    norm_eps: float = setting(
        "layer_norm_eps", "epsilon of the final LayerNorm", EPS, default=1e-12
    )
    layer_scale: bool = True  # a factor per channel of what a block adds
    response_norm: bool = False  # V2: a norm of channels by their magnitudes over the image

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("stage_channels",), len(self.depths), "stage of depths")
