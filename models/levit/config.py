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
        "image_size", "image height and width (equal), in pixels", WIDTH, default=(224, 224)
    )
    num_channels: int = setting("num_channels", "channels of the input image", WIDTH, default=3)
    window: int = setting(
        "kernel_size", "kernel size of the patch-embedding convolutions", WIDTH, default=3
    )
    stride: int = setting("stride", "stride of the patch-embedding convolutions", WIDTH, default=2)
    padding: int = setting(
        "padding", "zero padding of the patch-embedding convolutions", COUNT, default=1
    )
    patch_size: int = setting("patch_size", "patch height and width, in pixels", WIDTH, default=16)
    dims: tuple[int, ...] = setting(
        "hidden_sizes", "width of the residual stream", WIDTH, default=(128, 256, 384)
    )
    num_heads: tuple[int, ...] = setting(
        "num_attention_heads", "number of attention heads in each stage", WIDTH, default=(4, 8, 12)
    )
    depths: tuple[int, ...] = setting(
        "depths", "number of blocks in each stage", LAYERS, default=(4, 4, 4)
    )
    key_dims: tuple[int, ...] = setting(
        "key_dim", "width of a head's queries and keys", WIDTH, default=(16, 16, 16)
    )
    mlp_ratios: tuple[int, ...] = setting(
        "mlp_ratio", "expansion ratio of the feed-forward block", WIDTH, default=(2, 2, 2)
    )
    value_ratios: tuple[int, ...] = setting(
        "attention_ratio", "ratio of value width to key width", WIDTH, default=(2, 2, 2)
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
                raise ConfigError(
                    f"{entry.name}={value} has {len(value)} values, but a LeViT has {STAGES} stages"
                )
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
        size = self.image_size[0] // self.patch_size
        for _ in range(stage):
            size = -(-size // STRIDE)
        return size

    def shrinking_heads(self, stage: int) -> int:
        """Of the attention after a stage."""
        return self.dims[stage] // self.key_dims[0]
