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

    num_channels: int = setting("num_input_channels", "series side by side", WIDTH, default=1)
    context: int = setting("context_length", "times that are known", WIDTH, default=32)
    horizon: int = setting("prediction_length", "times that are foretold", WIDTH, default=24)
    patch_length: int = setting("patch_length", "times of a patch", WIDTH, default=1)
    patch_stride: int = setting("patch_stride", "from one patch to the next", WIDTH, default=1)
    dim: int = setting("d_model", "width of the residual stream", WIDTH, default=128)
    hidden_dim: int = setting("ffn_dim", "of feed-forward blocks", WIDTH, default=512)
    num_layers: int = setting("num_hidden_layers", "transformer blocks", LAYERS, default=3)
    num_heads: int = setting("num_attention_heads", "of attention", WIDTH, default=4)
    act: str = setting("activation_function", "of feed-forward blocks", default="gelu")
    mlp_bias: bool = setting("bias", "of feed-forward blocks", default=True)
    channel_attention: bool = setting(
        "channel_attention", "series look at each other, besides patches", default=False
    )
    norm: str = setting("norm_type", "one of NORMS", default="batchnorm")
    norm_eps: float = setting("norm_eps", "added to the variance in norms", EPS, default=1e-5)
    pre_norm: bool = setting("pre_norm", "norms stand before the parts of a block", default=True)
    positions: str = setting("positional_encoding_type", "one of POSITIONS", default="sincos")
    class_token: bool = setting("use_cls_token", "in front of the patches", default=False)
    pooling: str | None = setting(
        "pooling_type", "of patches for the forecast, one of POOLINGS", default="mean"
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
                raise ConfigError(f"{name}={getattr(self, name)!r}: there are {allowed}")
        if self.context <= self.patch_length:
            raise ConfigError(
                f"{self.context} known times are not longer than a patch of {self.patch_length}"
            )
        if self.dim % self.num_heads:
            raise ConfigError(f"dim={self.dim} does not divide into num_heads={self.num_heads}")
        activation(self.act)

    @property
    def num_patches(self) -> int:
        """Of one series."""
        return (self.context - self.patch_length) // self.patch_stride + 1

    @property
    def begin(self) -> int:
        """The first time that a patch holds."""
        return self.context - self.patch_length - self.patch_stride * (self.num_patches - 1)
