"""Dimensions and constants of a MobileViT."""

from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.errors import ConfigError
from models.image_config import ImageConfig
from models.layers.blocks import BlockShape
from models.settings import WIDTH, check_counts, check_multiple, setting

CONVOLUTIONS = (1, 3)  # inverted residuals of the first two stages
TRANSFORMERS = (2, 4, 3)  # blocks of the three others
_NECKS = len(CONVOLUTIONS) + len(TRANSFORMERS) + 2


@dataclass(frozen=True)
class MobileViTConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is MobileViT-S.

    Raises ConfigError if the dimensions do not fit together.
    """

    patch_size: int = setting(
        "patch_size", "patch height and width, in positions of the feature map", WIDTH, default=2
    )
    dims: tuple[int, ...] = setting("hidden_sizes", default=(144, 192, 240))
    channels: tuple[int, ...] = setting(
        "neck_hidden_sizes",
        "channels after the first convolution, each stage and the last convolution",
        WIDTH,
        default=(16, 32, 64, 96, 128, 160, 640),
    )
    num_heads: int = setting("num_attention_heads", default=4)
    mlp_ratio: float = setting("mlp_ratio", default=2.0)
    expand_ratio: float = setting("expand_ratio", default=4.0)
    act: str = setting("hidden_act", default="silu")
    window: int = setting("conv_kernel_size", default=3)
    output_stride: int = setting("output_stride", default=32)
    norm_eps: float = setting("layer_norm_eps", default=1e-5)
    qkv_bias: bool = setting("qkv_bias", default=True)
    head_channels: int = setting("aspp_out_channels", default=256)
    dilations: tuple[int, ...] = setting("atrous_rates", default=(6, 12, 18))
    segments: bool = False  # the head labels every place, not the image

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("dims",), len(TRANSFORMERS), "transformer")
        check_counts(self, ("channels",), _NECKS, "convolution and stage")
        check_counts(self, ("dilations",), 3, "dilated window")
        check_multiple(self, "dims", "num_heads")
        if self.window % 2 == 0:
            raise ConfigError(f"window={self.window} is even: the kernel size must be odd")

    def block(self, dim: int) -> BlockShape:
        return BlockShape.of(self, dim=dim, hidden_dim=int(self.mlp_ratio * dim))

    def shrinking(self, stage: int) -> tuple[int, int]:
        """Stride and dilation of the convolution before a transformer: once the image is as small
        as it may become, windows are spread instead of moved on."""
        kept = {8: (1, 2), 16: (2,), 32: ()}[self.output_stride]
        return (1, kept.index(stage) + 1) if stage in kept else (2, 1)
