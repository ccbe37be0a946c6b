"""Dimensions and constants of a PatchTST."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.settings import ModelConfig, OneOf, check_multiple, setting

NORMS = OneOf(("batchnorm", "layernorm"))
POSITIONS = OneOf(("sincos", "random"))
POOLINGS = OneOf(("mean", "max"))
SCALINGS = OneOf(("std", "mean"))


@dataclass(frozen=True)
class PatchTSTConfig(ModelConfig):
    """Every dimension and constant of the model; the defaults are those of transformers.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_input_channels", default=1)
    context: int = setting("context_length", default=32)
    horizon: int = setting("prediction_length", default=24)
    patch_length: int = setting("patch_length", default=1)
    patch_stride: int = setting("patch_stride", default=1)
    dim: int = setting("d_model", default=128)
    hidden_dim: int = setting("ffn_dim", default=512)
    num_layers: int = setting("num_hidden_layers", default=3)
    num_heads: int = setting("num_attention_heads", default=4)
    act: str = setting("activation_function", default="gelu")
    mlp_bias: bool = setting("bias", default=True)
    channel_attention: bool = setting("channel_attention", default=False)
    norm: str = setting("norm_type", "kind of norm", NORMS, default="batchnorm")
    norm_eps: float = setting("norm_eps", default=1e-5)
    pre_norm: bool = setting("pre_norm", default=True)
    positions: str = setting(
        "positional_encoding_type", "kind of position embedding", POSITIONS, default="sincos"
    )
    shared_patches: bool = setting("share_embedding", default=True)
    class_token: bool = setting("use_cls_token", default=False)
    pooling: str | None = setting(
        "pooling_type", "pooling of the patches for the forecast", POOLINGS, default="mean"
    )
    scaling: str | None = setting(
        None, "scaling of each series over its known times", SCALINGS, default=None
    )
    initializer_range: float = setting("init_std", default=0.02)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context <= self.patch_length:
            raise ConfigError(
                f"context={self.context} must be greater than patch_length={self.patch_length}"
            )
        check_multiple(self, "dim", "num_heads")

    @property
    def block(self) -> BlockShape:
        return BlockShape.of(self)

    @property
    def is_pooled(self) -> bool:
        """Whether one vector of each series makes its forecast, rather than all of its patches."""
        return self.class_token or self.pooling is not None

    @property
    def num_patches(self) -> int:
        """The number of patches of one series."""
        return (self.context - self.patch_length) // self.patch_stride + 1

    @property
    def begin(self) -> int:
        """The first time that a patch holds."""
        return self.context - self.patch_length - self.patch_stride * (self.num_patches - 1)
