"""Dimensions and constants of a LeViT."""

from dataclasses import dataclass
from typing import NamedTuple

from models.common_settings import NormalConfig
from models.errors import ConfigError
from models.image_config import ImageConfig
from models.settings import WIDTH, check_counts, setting

STAGES = 3
NUM_CONVOLUTIONS = 4  # that make tokens
STRIDE = 2  # between stages, along both axes
VALUE_RATIO = 4  # between stages, by which values are wider than keys
MLP_RATIO = 2  # of the block after a stage
_OF_STAGES = ("dims", "num_heads", "depths", "key_dims", "mlp_ratios", "value_ratios")


class Heads(NamedTuple):
    """How many, and the widths of their keys and values."""

    number: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class LevitConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is LeViT-128S. Tuples have a value for
    each stage.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting("image_size", default=(224, 224))
    window: int = setting("kernel_size", default=3)
    stride: int = setting("stride", default=2)
    padding: int = setting("padding", default=1)
    patch_size: int = setting("patch_size", default=16)
    dims: tuple[int, ...] = setting("hidden_sizes", default=(128, 256, 384))
    num_heads: tuple[int, ...] = setting("num_attention_heads", default=(4, 8, 12))
    depths: tuple[int, ...] = setting("depths", default=(4, 4, 4))
    key_dims: tuple[int, ...] = setting("key_dim", default=(16, 16, 16))
    mlp_ratios: tuple[int, ...] = setting(
        "mlp_ratio", "expansion ratio of the feed-forward block", WIDTH, default=(2, 2, 2)
    )
    value_ratios: tuple[int, ...] = setting("attention_ratio", default=(2, 2, 2))
    distilled: bool = False  # a second classifier, which learns from a teacher

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, _OF_STAGES, STAGES, "stage")
        if self.dims[0] < 2 ** (NUM_CONVOLUTIONS - 1) or min(self.dims[:2]) < self.key_dims[0]:
            raise ConfigError(
                f"dims={self.dims} are too small: the first must be at least "
                f"{2 ** (NUM_CONVOLUTIONS - 1)}, and the first two at least "
                f"key_dims[0]={self.key_dims[0]}"
            )
        if self.image_size[0] != self.image_size[1]:
            raise ConfigError(
                f"image_size={self.image_size} is not square: a LeViT only takes square images"
            )
        made = self.image_size[0]
        for _ in range(NUM_CONVOLUTIONS):
            made = (made + 2 * self.padding - self.window) // self.stride + 1
        if made < 1 or made != self.grid(0):
            raise ConfigError(
                f"the {NUM_CONVOLUTIONS} patch-embedding convolutions turn an image of "
                f"{self.image_size} pixels into {made} x {made} tokens, but patches of "
                f"{self.patch_size} pixels give {self.grid(0)} x {self.grid(0)}. Correct "
                "image_size, patch_size, kernel_size, stride or padding."
            )

    def grid(self, stage: int) -> int:
        """Rows, and columns, of tokens."""
        return -(-(self.image_size[0] // self.patch_size) // STRIDE**stage)

    def heads(self, stage: int, *, shrinks: bool) -> Heads:
        """The heads of a stage's attention, or of that after the stage, which shrinks the image."""
        dim = self.key_dims[0 if shrinks else stage]
        if shrinks:
            return Heads(self.dims[stage] // dim, dim, VALUE_RATIO * dim)
        return Heads(self.num_heads[stage], dim, self.value_ratios[stage] * dim)
