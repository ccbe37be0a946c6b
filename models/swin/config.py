"""Dimensions and constants of a Swin transformer."""

from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.errors import ConfigError
from models.image_config import ImageConfig
from models.layers.blocks import BlockShape
from models.settings import WIDTH, check_counts, check_multiple, setting


@dataclass(frozen=True)
class SwinConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is Swin-T for 224 x 224 pixels.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting("image_size", default=(224, 224))
    patch_size: tuple[int, int] = setting("patch_size", default=(4, 4))
    dim: int = setting("embed_dim", "width of the first stage", WIDTH, default=96)
    depths: tuple[int, ...] = setting("depths", default=(2, 2, 6, 2))
    num_heads: tuple[int, ...] = setting("num_heads", default=(3, 6, 12, 24))
    window_size: int = setting("window_size", default=7)
    mlp_ratio: float = setting("mlp_ratio", default=4.0)
    qkv_bias: bool = setting("qkv_bias", default=True)
    absolute_positions: bool = setting("use_absolute_embeddings", default=False)
    act: str = setting("hidden_act", default="gelu")
    norm_eps: float = setting("layer_norm_eps", default=1e-5)
    final_norm: bool = True  # Donut's encoder has none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("num_heads",), len(self.depths), "stage of depths")
        check_multiple(self, "image_size", "patch_size")
        check_multiple(self, "dims", "num_heads")
        for stage in range(len(self.depths)):
            rows, columns = self.grid(stage)
            if min(rows, columns) < self.window_size:
                raise ConfigError(
                    f"stage {stage} has {rows} x {columns} tokens, fewer than a window of "
                    f"{self.window_size} x {self.window_size}. Use larger images, smaller windows "
                    "or fewer stages."
                )
        if self.mlp_ratio * self.dim < 1:
            raise ConfigError(
                f"mlp_ratio={self.mlp_ratio} is too small: it leaves dim={self.dim} no hidden units"
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """The width of each stage."""
        return tuple(self.dim * 2**stage for stage in range(len(self.depths)))

    def grid(self, stage: int) -> tuple[int, int]:
        """Rows and columns of tokens; odd ones of the stage before are padded."""
        (height, width), (down, right) = self.image_size, self.patch_size
        return -(-height // down // 2**stage), -(-width // right // 2**stage)

    def block(self, stage: int) -> BlockShape:
        dim, heads = self.dims[stage], self.num_heads[stage]
        return BlockShape.of(self, dim=dim, hidden_dim=int(self.mlp_ratio * dim), num_heads=heads)
