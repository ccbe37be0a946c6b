"""Dimensions and constants of a ConvNeXt."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.settings import DEVIATION, EPS, LAYERS, WIDTH, check_settings, setting


@dataclass(frozen=True)
class ConvNextConfig:
    """Every dimension and constant of the model; the default is ConvNeXt-T.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_channels", "channels of the input image", WIDTH, default=3)
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
        "hidden_act", "activation between the linear layers of a block", default="gelu"
    )
    norm_eps: float = setting(
        "layer_norm_eps", "epsilon of the final LayerNorm", EPS, default=1e-12
    )
    layer_scale: bool = True  # a factor per channel of what a block adds
    response_norm: bool = False  # V2: a norm of channels by their magnitudes over the image
    initializer_range: float = setting(
        "initializer_range", "standard deviation of the initial weights", DEVIATION, default=0.02
    )
    num_labels: int | None = None  # None = no classifier
    dtype: str = "float32"  # of activations and operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.stage_channels) != len(self.depths):
            raise ConfigError(
                f"stage_channels has {len(self.stage_channels)} stages, but depths has "
                f"{len(self.depths)}"
            )
        activation(self.act)
