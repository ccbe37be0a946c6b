"""Dimensions and constants of the denoiser and the autoencoder."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.settings import LAYERS, WIDTH, ModelConfig, setting

_IDS = 6  # sizes and places of an image


@dataclass(frozen=True)
class TimeIds:
    """Numbers such as the image's size that SDXL's denoiser is told, with the pooled prompt."""

    dim: int = 256  # width of each number's embedding
    input_dim: int = 2816  # of all embeddings and the pooled prompt together


@dataclass(frozen=True)
class ImagePrompts:
    """Images as a part of prompts, as an IP-Adapter adds them to a denoiser."""

    dim: int  # width of the vector of an image
    tokens: int  # what it becomes


@dataclass(frozen=True)
class UNetConfig(ModelConfig):
    """The denoiser; the default is that of Stable Diffusion 2.1.

    Levels are counted from the finest. Raises ConfigError if the dimensions do not fit together.
    """

    sample_size: tuple[int, int] = setting("sample_size", default=(96, 96))
    in_channels: int = setting("in_channels", default=4)
    out_channels: int = setting("out_channels", default=4)
    channels: tuple[int, ...] = setting("block_out_channels", default=(320, 640, 1280, 1280))
    layers: int = setting("layers_per_block", default=2)
    heads: tuple[int, ...] = (5, 10, 20, 20)  # of each level's attention
    depths: tuple[int, ...] = setting(
        None, "transformer blocks per attention layer, for each level", LAYERS, default=(1, 1, 1, 1)
    )
    down_attention: tuple[bool, ...] = (True, True, True, False)  # levels that have attention …
    up_attention: tuple[bool, ...] = (True, True, True, False)  # … on the way up
    context_dim: int = setting("cross_attention_dim", default=1024)
    groups: int = setting("norm_num_groups", default=32)
    norm_eps: float = setting("norm_eps", default=1e-5)
    cosine_first: bool = setting("flip_sin_to_cos", default=True)
    frequency_shift: float = setting("freq_shift", default=0.0)
    linear_projections: bool = setting("use_linear_projection", default=True)
    time_ids: TimeIds | None = None
    guidance_dim: int | None = setting("time_cond_proj_dim", default=None)
    image_prompts: ImagePrompts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guidance_dim is not None and self.guidance_dim < 4:
            raise ConfigError(
                f"guidance_dim={self.guidance_dim} is too small: it must be at least 4"
            )
        per_level = (self.heads, self.depths, self.down_attention, self.up_attention)
        if any(len(values) != len(self.channels) for values in per_level):
            raise ConfigError(
                f"channels has {len(self.channels)} levels, but heads, depths, down_attention and "
                f"up_attention have {[len(v) for v in per_level]}"
            )
        _check_channels(self.channels, self.groups)
        for channels, heads in zip(self.channels, self.heads, strict=True):
            if channels % heads:
                raise ConfigError(f"{channels} channels are not a multiple of {heads} heads")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the latents it was made for."""
        return self.sample_size

    @property
    def multiple(self) -> int:
        """What divides height and width of latents: every level but the last halves them."""
        return 1 << (len(self.channels) - 1)

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt: those of CLIP."""
        return 77

    @property
    def is_told_size(self) -> bool:
        return self.time_ids is not None

    @property
    def pooled_dim(self) -> int | None:
        """Width of the pooled prompt that it is told; None = it is not."""
        ids = self.time_ids
        return None if ids is None else ids.input_dim - _IDS * ids.dim

    @property
    def is_told_guidance(self) -> bool:
        return self.guidance_dim is not None

    @property
    def time_dim(self) -> int:
        """Width of the time embedding."""
        return 4 * self.channels[0]


@dataclass(frozen=True)
class AutoencoderConfig(ModelConfig):
    """The autoencoder; the default is that of Stable Diffusion.

    Raises ConfigError if the dimensions do not fit together.
    """

    sample_size: int = setting(
        "sample_size", "side of the training images in pixels", WIDTH, default=512
    )
    image_channels: int = setting("in_channels", "channels of the images", WIDTH, default=3)
    latent_channels: int = setting("latent_channels", default=4)
    channels: tuple[int, ...] = setting("block_out_channels", default=(128, 256, 512, 512))
    layers: int = setting("layers_per_block", default=2)
    groups: int = setting("norm_num_groups", default=32)
    scaling_factor: float = setting("scaling_factor", default=0.18215)
    shift_factor: float = setting("shift_factor", default=0.0)
    quant_conv: bool = setting("use_quant_conv", default=True)
    post_quant_conv: bool = setting("use_post_quant_conv", default=True)
    attention: bool = setting("mid_block_add_attention", default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_channels(self.channels, self.groups)

    @property
    def reduction(self) -> int:
        """Height and width of a latent in pixels of the image."""
        return 2 ** (len(self.channels) - 1)


def _check_channels(channels: tuple[int, ...], groups: int) -> None:
    if not channels:
        raise ConfigError("channels is empty: give the channels of at least one level")
    uneven = [width for width in channels if width % groups]
    if uneven:
        raise ConfigError(f"{uneven} channels are not multiples of {groups} groups")
