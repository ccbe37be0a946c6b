"""Dimensions and constants of a CvT."""

from dataclasses import dataclass, fields

from models.common_settings import NormalConfig
from models.errors import ConfigError
from models.image_config import ImageConfig
from models.layers.blocks import BlockShape
from models.settings import WIDTH, check_multiple, setting

NORM_EPS = 1e-5  # of all norms, whatever config.json says
DEPTHWISE = "dw_bn"  # the way to queries, keys and values that is supported


@dataclass(frozen=True)
class CvtConfig(ImageConfig, NormalConfig):
    """Every dimension and constant of the model; the default is CvT-13. Tuples have a value for
    each stage.

    Raises ConfigError if the dimensions do not fit together.
    """

    patch_sizes: tuple[int, ...] = setting("patch_sizes", default=(7, 3, 3))
    patch_strides: tuple[int, ...] = setting(
        "patch_stride", "stride of each stage's token embedding", WIDTH, default=(4, 2, 2)
    )
    patch_paddings: tuple[int, ...] = setting("patch_padding", default=(2, 1, 1))
    dims: tuple[int, ...] = setting("embed_dim", default=(64, 192, 384))
    num_heads: tuple[int, ...] = setting("num_heads", default=(1, 3, 6))
    depths: tuple[int, ...] = setting("depth", default=(1, 2, 10))
    mlp_ratios: tuple[float, ...] = setting("mlp_ratio", default=(4.0, 4.0, 4.0))
    qkv_biases: tuple[bool, ...] = setting("qkv_bias", default=(True, True, True))
    class_tokens: tuple[bool, ...] = setting("cls_token", default=(False, False, True))
    windows: tuple[int, ...] = setting("kernel_qkv", default=(3, 3, 3))
    key_paddings: tuple[int, ...] = setting("padding_kv", default=(1, 1, 1))
    key_strides: tuple[int, ...] = setting("stride_kv", default=(2, 2, 2))
    query_paddings: tuple[int, ...] = setting("padding_q", default=(1, 1, 1))
    query_strides: tuple[int, ...] = setting("stride_q", default=(1, 1, 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, tuple) and len(value) < len(self.depths):
                raise ConfigError(
                    f"{entry.name}={value} has {len(value)} values, but depths has "
                    f"{len(self.depths)} stages. Give a value for each stage."
                )
        if not self.class_tokens[len(self.depths) - 1]:
            raise ConfigError("the last stage needs a class token, which the classifier reads")
        check_multiple(self, "dims", "num_heads")
        for stage, dim in enumerate(self.dims[: len(self.depths)]):
            window = self.windows[stage]
            if self.query_strides[stage] != 1 or 2 * self.query_paddings[stage] != window - 1:
                raise ConfigError(
                    f"stage {stage} has windows={window}, "
                    f"query_strides={self.query_strides[stage]} and "
                    f"query_paddings={self.query_paddings[stage]}, which does not give one query "
                    "per token. Use an odd kernel_qkv, stride_q=1 and padding_q=kernel_qkv // 2."
                )
            if self.class_tokens[stage] and dim != self.dims[-1]:
                raise ConfigError(
                    f"stage {stage} has a class token and a width of {dim}, but the last stage "
                    f"has a width of {self.dims[-1]}. Give only the last stage a class token."
                )

    def block(self, stage: int) -> BlockShape:
        dim = self.dims[stage]
        return BlockShape.of(
            self,
            dim=dim,
            hidden_dim=int(self.mlp_ratios[stage] * dim),
            num_heads=self.num_heads[stage],
            act="gelu",
            norm_eps=NORM_EPS,
            qkv_bias=self.qkv_biases[stage],
        )
