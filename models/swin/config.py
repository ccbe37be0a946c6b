"""Dimensions and constants of a Swin transformer."""

from dataclasses import dataclass

from models.common_settings import common
from models.errors import ConfigError
from models.image_config import ImageConfig
from models.layers.blocks import BlockShape
from models.settings import (
    WIDTH,
    check_counts,
    check_multiple,
    setting,
)


@dataclass(frozen=True)
class SwinConfig(ImageConfig):
    """Every dimension and constant of the model; the default is Swin-T for 224 x 224 pixels.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = common("image_size", default=(224, 224))
    patch_size: tuple[int, int] = common("patch_size", default=(4, 4))
    dim: int = setting("embed_dim", "width of the first stage", WIDTH, default=96)
    depths: tuple[int, ...] = common("depths", default=(2, 2, 6, 2))
    num_heads: tuple[int, ...] = common("num_heads", default=(3, 6, 12, 24))
    window_size: int = setting(
        "window_size", "window height and width, in tokens", WIDTH, default=7
    )
    mlp_ratio: float = common("mlp_ratio", default=4.0)
    qkv_bias: bool = common("qkv_bias", default=True)
    absolute_positions: bool = setting(
        "use_absolute_embeddings", "whether absolute position embeddings are added", default=False
    )
    act: str = common("hidden_act", default="gelu")
    norm_eps: float = common("layer_norm_eps", default=1e-5)
    final_norm: bool = True  # Donut's encoder has none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("num_heads",), len(self.depths), "stage of depths")
        check_multiple(self, "image_size", "patch_size")
        for stage, heads in enumerate(self.num_heads):
            width, grid = self.width(stage), self.grid(stage)
            if width % heads:
                raise ConfigError(
                    f"stage {stage} has a width of {width}, which is not a multiple of its "
                    f"{heads} heads"
                )
            if min(grid) < self.window_size:
                raise ConfigError(
                    f"stage {stage} has {grid[0]} x {grid[1]} tokens, fewer than a window of "
                    f"{self.window_size} x {self.window_size}. Use larger images, smaller windows "
                    "or fewer stages."
                )
        if self.mlp_ratio * self.dim < 1:
            raise ConfigError(
                f"mlp_ratio={self.mlp_ratio} is too small: it leaves dim={self.dim} no hidden units"
            )

    def width(self, stage: int) -> int:
        """Of the residual stream; the last stage's number is -1 too."""
        return self.dim * 2 ** (stage % len(self.depths))

    def grid(self, stage: int) -> tuple[int, int]:
        """Rows and columns of tokens."""
        rows, columns = (
            -(-size // patch // 2**stage)  # odd ones are padded
            for size, patch in zip(self.image_size, self.patch_size, strict=True)
        )
        return rows, columns

    def block(self, stage: int) -> BlockShape:
        width = self.width(stage)
        return BlockShape.of(
            self,
            dim=width,
            hidden_dim=int(self.mlp_ratio * width),
            num_heads=self.num_heads[stage],
        )
