"""Dimensions and constants of a vision transformer."""

import math
from dataclasses import dataclass

from models.errors import ConfigError
from models.image_config import PatchConfig
from models.settings import ACTIVATION, setting


@dataclass(frozen=True)
class ViTConfig(PatchConfig):
    """Every dimension and constant of the model; the default is ViT-Base for 224 x 224 pixels.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting("image_size", default=(224, 224))
    patch_size: tuple[int, int] = setting("patch_size", default=(16, 16))
    stride: tuple[int, int] | None = None  # from patch to patch, in pixels; None = patch_size
    key_bias: bool = True  # of the keys, if queries and values have one
    absolute_positions: bool = True  # a table of positions
    relative_positions: bool = False  # BEiT: a bias of the scores in every block
    shared_positions: bool = False  # BEiT: a bias of the scores for all blocks
    layer_scale: float | None = None  # BEiT: what the parts of a block are multiplied by at first
    # BEiT: "first" or "mean" pools, "none" neither pools nor norms; None = a pooler with a layer
    pooling: str | None = None
    distilled: bool = False  # a second token in front of the patches, which learns from a teacher
    pooler_dim: int | None = None  # width of the pooled output; None = no pooler
    pooler_act: str = setting(None, "activation of the pooler", ACTIVATION, default="tanh")
    distilled_classifier: bool = False  # a second classifier, on the distillation token

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(
            image < patch for image, patch in zip(self.image_size, self.patch_size, strict=True)
        ):
            raise ConfigError(
                f"patch_size={self.patch_size} is larger than the image ({self.image_size} pixels)"
            )
        if self.distilled_classifier and not (self.distilled and self.num_labels):
            raise ConfigError(
                "distilled_classifier needs distilled=True and num_labels, as it reads the "
                "distillation token"
            )
        height, width = self.window
        if height != width and (self.relative_positions or self.shared_positions):
            raise ConfigError(
                f"image_size={self.image_size} gives {height} x {width} patches, but relative "
                "positions need as many rows as columns"
            )

    @property
    def num_patches(self) -> int:
        return math.prod(self.window)

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = (
            (size - patch) // step + 1
            for size, patch, step in zip(
                self.image_size, self.patch_size, self.stride or self.patch_size, strict=True
            )
        )
        return rows, columns

    @property
    def num_extra_tokens(self) -> int:
        """Tokens in front of the patches."""
        return 2 if self.distilled else 1
