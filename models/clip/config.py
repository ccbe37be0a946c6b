"""Dimensions and constants of CLIP."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.settings import WIDTH, Range, check_multiple, check_settings, setting


@dataclass(frozen=True)
class Tower:
    """The blocks of one tower. Raises ConfigError if the dimensions do not fit together."""

    dim: int = setting("hidden_size")
    hidden_dim: int = setting("intermediate_size")
    num_layers: int = setting("num_hidden_layers")
    num_heads: int = setting("num_attention_heads")
    act: str = setting("hidden_act", default="quick_gelu")
    norm_eps: float = setting("layer_norm_eps", default=1e-5)
    initializer_range: float = setting("initializer_range", default=0.02)

    def __post_init__(self) -> None:
        check_settings(self)
        check_multiple(self, "dim", "num_heads")

    def block(self, param_dtype: str) -> BlockShape:
        return BlockShape.of(self, param_dtype=param_dtype)


@dataclass(frozen=True)
class TextConfig:
    """The text tower."""

    tower: Tower
    vocab_size: int = setting("vocab_size", default=49408)
    max_seq_len: int = setting("max_position_embeddings", default=77)
    end_token: int | None = 49407  # the first one is where the text is pooled; None = the highest

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower. Raises ConfigError if the image holds no patch."""

    tower: Tower
    image_size: int = setting("image_size", default=224)
    patch_size: int = setting("patch_size", default=32)
    num_channels: int = setting("num_channels", default=3)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.image_size < self.patch_size:
            raise ConfigError(
                f"patch_size={self.patch_size} is larger than the image ({self.image_size} x "
                f"{self.image_size} pixels)"
            )

    @property
    def side(self) -> int:
        """Patches of a row, and of a column."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class CLIPConfig:
    """Both towers, or one of them. Raises ConfigError if there is none."""

    text: TextConfig | None
    vision: VisionConfig | None
    projection_dim: int | None = setting(
        None, "width of the shared embedding space; None = no projections", WIDTH, default=None
    )
    logit_scale: float = setting(
        "logit_scale_init_value",
        "initial logarithm of the cosine similarity's scale",
        Range(-80, 80),
        default=2.6592,
    )
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if self.text is None and self.vision is None:
            raise ConfigError("a CLIP model needs a text tower, a vision tower or both")
