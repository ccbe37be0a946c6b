"""Dimensions and constants of language models that see images."""

from dataclasses import dataclass, replace
from math import isqrt

from models.clip.config import VisionConfig as ClipVisionConfig
from models.decoder.config import DecoderConfig
from models.errors import ConfigError
from models.settings import ModelConfig, Range, setting


@dataclass(frozen=True)
class VisionConfig(ClipVisionConfig):
    """SigLIP's vision tower."""

    patch_size: int = setting("patch_size", default=16)


@dataclass(frozen=True)
class VisionLanguageConfig(ModelConfig):
    """Raises ConfigError if the tokens of an image do not follow from its patches."""

    text: DecoderConfig
    vision: VisionConfig
    image_token: int = setting(None, "ID of the placeholder for one image token", Range(0, 2**31))
    # One token is made of so many patches in each direction: side by side, …
    window: int = setting("scale_factor", default=2)
    pooled: bool = False  # … or their mean, which is normed; then an image sees itself whole

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """The number of tokens of one image."""
        return (self.vision.side // self.window) ** 2

    @property
    def max_seq_len(self) -> int:
        """The longest text, its images included, in tokens."""
        return self.text.max_seq_len

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the text's vocabulary."""
        return self.text.vocab_size

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The boundaries of the text's config: see `DecoderConfig`."""
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
