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

    num_channels: int = setting("num_channels", "of the images", WIDTH, default=3)
    patch_size: tuple[int, int] = setting(
        "patch_size", "of the first convolution, in pixels", WIDTH, default=(4, 4)
    )
    stage_channels: tuple[int, ...] = setting(
        "hidden_sizes", "channels of each stage", WIDTH, default=(96, 192, 384, 768)
    )
    depths: tuple[int, ...] = setting(
        "depths", "blocks of each stage", LAYERS, default=(3, 3, 9, 3)
    )
    act: str = setting("hidden_act", "between the products of a block", default="gelu")
    norm_eps: float = setting(
        "layer_norm_eps", "added to the variance in the last norm", EPS, default=1e-12
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
                f"there are channels for {len(self.stage_channels)} stages, but depths for "
                f"{len(self.depths)}"
            )
        activation(self.act)
