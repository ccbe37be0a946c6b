"""Dimensions and constants of a PatchTST."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.settings import DEVIATION, EPS, LAYERS, WIDTH, check_settings, setting

NORMS = ("batchnorm", "layernorm")
POSITIONS = ("sincos", "random")
POOLINGS = (None, "mean", "max")
SCALINGS = (None, "std", "mean")


@dataclass(frozen=True)
class PatchTSTConfig:
    """Every dimension and constant of the model; the defaults are those of transformers.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_input_channels", "number of series", WIDTH, default=1)
    context: int = setting("context_length", "time steps of the input", WIDTH, default=32)
    horizon: int = setting("prediction_length", "time steps to forecast", WIDTH, default=24)
    patch_length: int = setting("patch_length", "time steps per patch", WIDTH, default=1)
    patch_stride: int = setting(
        "patch_stride", "time steps between the starts of patches", WIDTH, default=1
    )
    dim: int = setting("d_model", "width of the residual stream", WIDTH, default=128)
    hidden_dim: int = setting("ffn_dim", "width of the feed-forward block", WIDTH, default=512)
    num_layers: int = setting("num_hidden_layers", "number of layers", LAYERS, default=3)
    num_heads: int = setting("num_attention_heads", "number of attention heads", WIDTH, default=4)
    act: str = setting(
        "activation_function", "activation of the feed-forward block", default="gelu"
    )
    mlp_bias: bool = setting("bias", "biases of the feed-forward block", default=True)
    channel_attention: bool = setting(
        "channel_attention", "whether series attend to each other", default=False
    )
    norm: str = setting("norm_type", "kind of norm, one of NORMS", default="batchnorm")
    norm_eps: float = setting("norm_eps", "norm epsilon", EPS, default=1e-5)
    pre_norm: bool = setting(
        "pre_norm", "whether norms come before attention and the feed-forward block", default=True
    )
    positions: str = setting(
        "positional_encoding_type", "kind of position embedding, one of POSITIONS", default="sincos"
    )
    class_token: bool = setting(
        "use_cls_token", "whether a class token precedes the patches", default=False
    )
    pooling: str | None = setting(
        "pooling_type", "pooling of the patches for the forecast, one of POOLINGS", default="mean"
    )
    scaling: str | None = None  # of each series over its known times, one of SCALINGS
    initializer_range: float = setting(
        "init_std", "standard deviation of the initial weights", DEVIATION, default=0.02
    )
    dtype: str = "float32"  # of activations and operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        choices = {
            "norm": NORMS,
            "positions": POSITIONS,
            "pooling": POOLINGS,
            "scaling": SCALINGS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not supported; choose one of "
                    f"{', '.join(map(str, allowed))}"
                )
        if self.context <= self.patch_length:
            raise ConfigError(
                f"context={self.context} must be greater than patch_length={self.patch_length}"
            )
        if self.dim % self.num_heads:
            raise ConfigError(f"dim={self.dim} is not a multiple of num_heads={self.num_heads}")
        activation(self.act)

    @property
    def num_patches(self) -> int:
        """Of one series."""
        return (self.context - self.patch_length) // self.patch_stride + 1

    @property
    def begin(self) -> int:
        """The first time that a patch holds."""
        return self.context - self.patch_length - self.patch_stride * (self.num_patches - 1)
