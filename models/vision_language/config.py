"""Dimensions and constants of language models that see images."""

from dataclasses import dataclass, replace
from math import isqrt

from models.clip.config import Tower
from models.decoder.config import DecoderConfig
from models.errors import ConfigError
from models.settings import WIDTH, Range, check_settings, setting


@dataclass(frozen=True)
class VisionConfig:
    """SigLIP's vision tower. Raises ConfigError if patches do not fill the image."""

    tower: Tower
    image_size: int = setting("image_size", "image height and width, in pixels", WIDTH, default=224)
    patch_size: int = setting("patch_size", "patch height and width, in pixels", WIDTH, default=16)
    num_channels: int = setting("num_channels", "channels of the input image", WIDTH, default=3)

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
class VisionLanguageConfig:
    """Raises ConfigError if the tokens of an image do not follow from its patches."""

    text: DecoderConfig
    vision: VisionConfig
    image_token: int = setting(None, "ID of the placeholder for one image token", Range(0, 2**31))
    # One token is made of so many patches in each direction: side by side, …
    window: int = setting(
        "scale_factor", "patches per image token, along each side", WIDTH, default=2
    )
    pooled: bool = False  # … or their mean, which is normed; then an image sees itself whole
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if self.vision.side % self.window:
            raise ConfigError(
                f"an image has {self.vision.side} patches per side, which is not a multiple of "
                f"scale_factor={self.window}"
            )

    @property
    def decoder(self) -> DecoderConfig:
        """The text's, in the dtypes of the whole."""
        return replace(self.text, dtype=self.dtype, param_dtype=self.param_dtype)

    @property
    def image_tokens(self) -> int:
        """Of one image."""
        return (self.vision.side // self.window) ** 2

    @property
    def max_seq_len(self) -> int:
        """The longest text, its images included, in tokens."""
        return self.text.max_seq_len

    @property
    def vocab_size(self) -> int:
        """Of the text."""
        return self.text.vocab_size

    @property
    def boundaries(self) -> tuple[int, ...]:
        """See `DecoderConfig`."""
        return self.text.boundaries


def pooled_window(side: int, tokens: int) -> int:
    """Patches in a row of which one of an image's tokens is made. Raises ConfigError if the
    number of tokens is no square of a whole part of the side."""
    root = isqrt(tokens)
    if root * root != tokens or root > side or side % root:
        raise ConfigError(
            f"{side} x {side} patches cannot be pooled into {tokens} tokens: the number of tokens "
            f"must be a square whose side divides {side}"
        )
    return side // root
