"""What the configs of image models share."""

from dataclasses import dataclass

from models.common_settings import TransformerConfig
from models.layers.blocks import BlockShape
from models.settings import ModelConfig, setting


@dataclass(frozen=True, kw_only=True)
class ImageConfig(ModelConfig):
    """The settings of every model of images."""

    image_size: tuple[int, int] | None = None  # height and width that images must have
    num_channels: int = setting("num_channels", default=3)
    num_labels: int | None = None  # None = features alone


@dataclass(frozen=True, kw_only=True)
class PatchConfig(ImageConfig, TransformerConfig):
    """The settings of transformers over patches; the defaults are those of ViT-Base."""

    act: str = setting("hidden_act", default="gelu")
    qkv_bias: bool = setting("qkv_bias", default=True)
    norm_eps: float = setting("layer_norm_eps", default=1e-12)

    @property
    def block(self) -> BlockShape:
        return BlockShape.of(self)
