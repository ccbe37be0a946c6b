"""Dimensions and constants of a YOLOS."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.blocks import BlockShape
from models.settings import DEVIATION, EPS, LAYERS, WIDTH, check_settings, setting


@dataclass(frozen=True)
class YolosConfig:
    """Every dimension and constant of the model; the default is YOLOS-Base.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting(
        "image_size",
        "image height and width of the position embeddings, in pixels",
        WIDTH,
        default=(512, 864),
    )
    patch_size: int = setting("patch_size", "patch height and width, in pixels", WIDTH, default=16)
    num_channels: int = setting("num_channels", "channels of the input image", WIDTH, default=3)
    num_detections: int = setting(
        "num_detection_tokens", "largest number of objects in an image", WIDTH, default=100
    )
    num_layers: int = setting("num_hidden_layers", "number of layers", LAYERS, default=12)
    dim: int = setting("hidden_size", "width of the residual stream", WIDTH, default=768)
    hidden_dim: int = setting(
        "intermediate_size", "width of the feed-forward block", WIDTH, default=3072
    )
    num_heads: int = setting("num_attention_heads", "number of attention heads", WIDTH, default=12)
    act: str = setting("hidden_act", "activation of the feed-forward block", default="gelu")
    qkv_bias: bool = setting(
        "qkv_bias", "biases of the query, key and value projections", default=True
    )
    mid_positions: bool = setting(
        "use_mid_position_embeddings",
        "whether position embeddings are added between all layers",
        default=True,
    )
    norm_eps: float = setting("layer_norm_eps", "LayerNorm epsilon", EPS, default=1e-12)
    num_labels: int | None = None  # classes of objects; None = features alone
    initializer_range: float = setting(
        "initializer_range", "standard deviation of the initial weights", DEVIATION, default=0.02
    )
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if self.dim % self.num_heads:
            raise ConfigError(f"dim={self.dim} is not a multiple of num_heads={self.num_heads}")
        if any(size % self.patch_size for size in self.image_size):
            raise ConfigError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}"
            )
        activation(self.act)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches that the positions are made for."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def block(self) -> BlockShape:
        return BlockShape.of(self)
