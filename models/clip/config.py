"""Dimensions and constants of CLIP."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.blocks import BlockShape


@dataclass(frozen=True)
class Tower:
    """The blocks of one tower. Raises ConfigError if the dimensions do not fit together."""

    dim: int  # width of the residual stream
    hidden_dim: int  # width of the feed-forward block
    num_layers: int
    num_heads: int
    act: str = "quick_gelu"  # of the feed-forward block
    norm_eps: float = 1e-5
    initializer_range: float = 0.02  # standard deviation of the initial weights

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ConfigError(f"dim={self.dim} is not a multiple of num_heads={self.num_heads}")
        activation(self.act)

    def block(self, param_dtype: str) -> BlockShape:
        return BlockShape(
            dim=self.dim,
            hidden_dim=self.hidden_dim,
            num_heads=self.num_heads,
            act=self.act,
            norm_eps=self.norm_eps,
            initializer_range=self.initializer_range,
            param_dtype=param_dtype,
        )


@dataclass(frozen=True)
class TextConfig:
    """The text tower."""

    tower: Tower
    vocab_size: int = 49408
    max_seq_len: int = 77  # longest text, in tokens
    end_token: int | None = 49407  # the first one is where the text is pooled; None = the highest


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower. Raises ConfigError if the image holds no patch."""

    tower: Tower
    image_size: int = 224  # height and width, in pixels
    patch_size: int = 32  # of one token, in pixels
    num_channels: int = 3

    def __post_init__(self) -> None:
        if self.image_size < self.patch_size:
            raise ConfigError(
                f"an image of {self.image_size} pixels holds no patch of {self.patch_size}"
            )

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class CLIPConfig:
    """Both towers, or one of them. Raises ConfigError if there is none."""

    text: TextConfig | None
    vision: VisionConfig | None
    projection_dim: int | None = None  # of the common space; None = no projections
    logit_scale: float = 2.6592  # initial logarithm of the factor on the cosine
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        if self.text is None and self.vision is None:
            raise ConfigError("a CLIP model needs a text tower or a vision tower")
