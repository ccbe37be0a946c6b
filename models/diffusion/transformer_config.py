"""Dimensions of denoisers that are transformers over patches of latents."""

from dataclasses import dataclass

from models.diffusion.blocks import STDDEV
from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.settings import LAYERS, WIDTH, ModelConfig, setting

ACT = "gelu_pytorch_tanh"
_PATCH = 2  # of Flux, whose files call the channels of a patch those of its input


@dataclass(frozen=True, kw_only=True)
class TokensConfig(ModelConfig):
    """The settings that both kinds of transformers have."""

    head_dim: int = setting("attention_head_dim")
    num_heads: int = setting("num_attention_heads")
    norm_eps: float = 1e-6
    attention_bias: bool = True  # of queries, keys and values

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_heads * self.head_dim

    @property
    def block(self) -> BlockShape:
        """A block's dimensions; what modulates it is another matter."""
        return BlockShape.of(
            self,
            hidden_dim=4 * self.dim,
            act=ACT,
            qkv_bias=self.attention_bias,
            initializer_range=STDDEV,
        )


@dataclass(frozen=True)
class FluxConfig(TokensConfig):
    """Flux; the default is Flux.1 schnell.

    Raises ConfigError if the dimensions do not fit together.
    """

    patch_channels: int = setting(
        "in_channels", "channels of a patch of latents", WIDTH, default=64
    )
    num_layers: int = setting("num_layers", "number of double-stream blocks", LAYERS, default=19)
    num_single_layers: int = setting("num_single_layers", default=38)
    head_dim: int = setting("attention_head_dim", default=128)
    num_heads: int = setting("num_attention_heads", default=24)
    context_dim: int = setting("joint_attention_dim", default=4096)
    pooled_dim: int = setting("pooled_projection_dim", default=768)
    is_told_guidance: bool = setting("guidance_embeds", default=False)
    rotary_widths: tuple[int, ...] = setting("axes_dims_rope", default=(16, 56, 56))

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = self.rotary_widths
        if len(widths) != 3 or sum(widths) != self.head_dim or any(w % 2 for w in widths):
            raise ConfigError(
                f"axes_dims_rope={list(widths)} must be three even numbers that add up to "
                f"attention_head_dim={self.head_dim}"
            )
        if self.patch_channels % _PATCH**2:
            raise ConfigError(
                f"in_channels={self.patch_channels} must be a multiple of {_PATCH**2}, for "
                f"patches of {_PATCH} x {_PATCH}"
            )

    @property
    def in_channels(self) -> int:
        """The number of channels of the latents."""
        return self.patch_channels // _PATCH**2

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the latents it was made for."""
        return 128, 128

    @property
    def multiple(self) -> int:
        """What divides height and width of latents."""
        return _PATCH

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt, of T5."""
        return 512

    @property
    def is_told_size(self) -> bool:
        return False


@dataclass(frozen=True)
class PixArtConfig(TokensConfig):
    """PixArt-alpha and PixArt-sigma; the default is the largest.

    Raises ConfigError if the dimensions do not fit together.
    """

    sample_size: int = setting("sample_size", default=128)
    patch_size: int = setting("patch_size", "patch height and width", WIDTH, default=2)
    in_channels: int = setting("in_channels", default=4)
    out_channels: int = setting("out_channels", default=8)
    num_layers: int = setting("num_layers", default=28)
    head_dim: int = setting("attention_head_dim", default=72)
    num_heads: int = setting("num_attention_heads", default=16)
    attention_bias: bool = setting("attention_bias", default=True)
    context_dim: int = setting("caption_channels", default=4096)
    norm_eps: float = setting("norm_eps", default=1e-6)
    # None = as many times as 64 goes into the sample's size
    interpolation_scale: float | None = setting("interpolation_scale", default=None)
    # None = only models for samples of 128
    tells_size: bool | None = setting("use_additional_conditions", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % 4 or (self.is_told_size and self.dim % 3):
            raise ConfigError(
                f"num_heads={self.num_heads} and head_dim={self.head_dim} give a width of "
                f"{self.dim}, but position embeddings need a multiple of 4, and image size "
                "embeddings also one of 3"
            )
        if self.sample_size % self.patch_size:
            raise ConfigError(
                f"sample_size={self.sample_size} is not a multiple of patch_size={self.patch_size}"
            )

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the latents it was made for."""
        return self.sample_size, self.sample_size

    @property
    def multiple(self) -> int:
        """What divides height and width of latents."""
        return self.patch_size

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt, of T5; PixArt-alpha takes 120."""
        return 300

    @property
    def pooled_dim(self) -> None:
        return None

    @property
    def is_told_size(self) -> bool:
        return self.sample_size == 128 if self.tells_size is None else self.tells_size

    @property
    def is_told_guidance(self) -> bool:
        return False

    @property
    def stretch(self) -> float:
        """The factor by which positions are divided."""
        return self.interpolation_scale or float(max(self.sample_size // 64, 1))
