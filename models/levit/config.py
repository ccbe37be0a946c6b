"""Dimensions and constants of a LeViT."""

from dataclasses import dataclass, fields

from models.errors import ConfigError
from models.settings import COUNT, DEVIATION, LAYERS, WIDTH, check_settings, setting

STAGES = 3
NUM_CONVOLUTIONS = 4  # that make tokens
STRIDE = 2  # between stages, along both axes
VALUE_RATIO = 4  # between stages, by which values are wider than keys
MLP_RATIO = 2  # of the block after a stage


@dataclass(frozen=True)
class LevitConfig:
    """Every dimension and constant of the model; the default is LeViT-128S. Tuples have a value for
    each stage.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting(
        "image_size", "height and width, which are equal, in pixels", WIDTH, default=(224, 224)
    )
    num_channels: int = setting("num_channels", "of the images", WIDTH, default=3)
    window: int = setting("kernel_size", "of the convolutions that make tokens", WIDTH, default=3)
    stride: int = setting("stride", "of these convolutions", WIDTH, default=2)
    padding: int = setting("padding", "zeros around their images", COUNT, default=1)
    patch_size: int = setting("patch_size", "of one token, in pixels", WIDTH, default=16)
    dims: tuple[int, ...] = setting(
        "hidden_sizes", "width of the residual stream", WIDTH, default=(128, 256, 384)
    )
    num_heads: tuple[int, ...] = setting(
        "num_attention_heads", "attention heads", WIDTH, default=(4, 8, 12)
    )
    depths: tuple[int, ...] = setting("depths", "blocks", LAYERS, default=(4, 4, 4))
    key_dims: tuple[int, ...] = setting("key_dim", "of a head", WIDTH, default=(16, 16, 16))
    mlp_ratios: tuple[int, ...] = setting(
        "mlp_ratio", "by which a block is wider inside", WIDTH, default=(2, 2, 2)
    )
    value_ratios: tuple[int, ...] = setting(
        "attention_ratio", "by which values are wider than keys", WIDTH, default=(2, 2, 2)
    )
    initializer_range: float = setting(
        "initializer_range", "standard deviation of the initial weights", DEVIATION, default=0.02
    )
    num_labels: int | None = None  # None = no classifier
    distilled: bool = False  # a second classifier, which learns from a teacher
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        for entry in fields(self):
            value = getattr(self, entry.name)
            of_stages = isinstance(value, tuple) and entry.name != "image_size"
            if of_stages and len(value) != STAGES:
                raise ConfigError(f"{entry.name}={value}: a LeViT has {STAGES} stages")
        if self.dims[0] < 2 ** (NUM_CONVOLUTIONS - 1) or min(self.dims[:2]) < self.key_dims[0]:
            raise ConfigError(f"dims={self.dims} are too small for heads and convolutions")
        if self.image_size[0] != self.image_size[1]:
            raise ConfigError(f"images of {self.image_size} pixels: a LeViT sees squares")
        made = self.image_size[0]
        for _ in range(NUM_CONVOLUTIONS):
            made = (made + 2 * self.padding - self.window) // self.stride + 1
        if made < 1 or made != self.grid(0):
            raise ConfigError(
                f"{NUM_CONVOLUTIONS} convolutions make {made} x {made} tokens of an image of "
                f"{self.image_size} pixels, but patches of {self.patch_size} are {self.grid(0)} x "
                f"{self.grid(0)}: correct image_size, patch_size, kernel_size, stride or padding"
            )

    def grid(self, stage: int) -> int:
        """Rows, and columns, of tokens."""
        size = self.image_size[0] // self.patch_size
        for _ in range(stage):
            size = -(-size // STRIDE)
        return size

    def shrinking_heads(self, stage: int) -> int:
        """Of the attention after a stage."""
        return self.dims[stage] // self.key_dims[0]
