"""What the configs of image models share."""

from dataclasses import dataclass

from models.layers.blocks import BlockShape
from models.settings import (
    ACTIVATION,
    EPS,
    LAYERS,
    WIDTH,
    NormalConfig,
    OneOf,
    check_multiple,
    setting,
)

OUTPUT_STRIDE = OneOf((8, 16, 32))
"""How much smaller than its image the last feature map of a small network may be."""


@dataclass(frozen=True, kw_only=True)
class ImageConfig(NormalConfig):
    """Of every one."""

    num_channels: int = setting("num_channels", "channels of the input image", WIDTH, default=3)
    num_labels: int | None = None  # None = features alone


@dataclass(frozen=True, kw_only=True)
class PatchConfig(ImageConfig):
    """Of transformers over patches; the defaults are those of ViT-Base."""

    num_layers: int = setting("num_hidden_layers", "number of layers", LAYERS, default=12)
    dim: int = setting("hidden_size", "width of the residual stream", WIDTH, default=768)
    hidden_dim: int = setting(
        "intermediate_size", "width of the feed-forward block", WIDTH, default=3072
    )
    num_heads: int = setting("num_attention_heads", "number of attention heads", WIDTH, default=12)
    act: str = setting(
        "hidden_act", "activation of the feed-forward block", ACTIVATION, default="gelu"
    )
    qkv_bias: bool = setting(
        "qkv_bias", "biases of the query, key and value projections", default=True
    )
    norm_eps: float = setting("layer_norm_eps", "LayerNorm epsilon", EPS, default=1e-12)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")

    @property
    def block(self) -> BlockShape:
        return BlockShape.of(self)
