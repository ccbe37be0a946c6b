"""What the configs of image models share."""

from dataclasses import dataclass

from models.common_settings import NormalConfig, common
from models.layers.blocks import BlockShape
from models.settings import check_multiple


@dataclass(frozen=True, kw_only=True)
class ImageConfig(NormalConfig):
    """Of every one."""

    num_channels: int = common("num_channels", default=3)
    num_labels: int | None = None  # None = features alone


@dataclass(frozen=True, kw_only=True)
class PatchConfig(ImageConfig):
    """Of transformers over patches; the defaults are those of ViT-Base."""

    num_layers: int = common("num_hidden_layers", default=12)
    dim: int = common("hidden_size", default=768)
    hidden_dim: int = common("intermediate_size", default=3072)
    num_heads: int = common("num_attention_heads", default=12)
    act: str = common("hidden_act", default="gelu")
    qkv_bias: bool = common("qkv_bias", default=True)
    norm_eps: float = common("layer_norm_eps", default=1e-12)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")

    @property
    def block(self) -> BlockShape:
        return BlockShape.of(self)
