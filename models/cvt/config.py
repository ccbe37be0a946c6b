"""Dimensions and constants of a CvT."""

from dataclasses import dataclass, fields

from models.errors import ConfigError
from models.settings import COUNT, DEVIATION, LAYERS, POSITIVE, WIDTH, check_settings, setting

DEPTHWISE = "dw_bn"  # the way to queries, keys and values that is supported


@dataclass(frozen=True)
class CvtConfig:
    """Every dimension and constant of the model; the default is CvT-13. Tuples have a value for
    each stage.

    Raises ConfigError if the dimensions do not fit together.
    """

    num_channels: int = setting("num_channels", "of the images", WIDTH, default=3)
    patch_sizes: tuple[int, ...] = setting(
        "patch_sizes", "windows that make tokens", WIDTH, default=(7, 3, 3)
    )
    patch_strides: tuple[int, ...] = setting(
        "patch_stride", "of these windows", WIDTH, default=(4, 2, 2)
    )
    patch_paddings: tuple[int, ...] = setting(
        "patch_padding", "zeros around the image", COUNT, default=(2, 1, 1)
    )
    dims: tuple[int, ...] = setting(
        "embed_dim", "width of the residual stream", WIDTH, default=(64, 192, 384)
    )
    num_heads: tuple[int, ...] = setting("num_heads", "attention heads", WIDTH, default=(1, 3, 6))
    depths: tuple[int, ...] = setting("depth", "blocks", LAYERS, default=(1, 2, 10))
    mlp_ratios: tuple[float, ...] = setting(
        "mlp_ratio", "by which a block is wider inside", POSITIVE, default=(4.0, 4.0, 4.0)
    )
    qkv_biases: tuple[bool, ...] = setting(
        "qkv_bias", "biases of queries, keys and values", default=(True, True, True)
    )
    class_tokens: tuple[bool, ...] = setting(
        "cls_token", "a token beside the patches", default=(False, False, True)
    )
    windows: tuple[int, ...] = setting(
        "kernel_qkv", "of the convolutions in attention", WIDTH, default=(3, 3, 3)
    )
    key_paddings: tuple[int, ...] = setting(
        "padding_kv", "zeros around keys and values", COUNT, default=(1, 1, 1)
    )
    key_strides: tuple[int, ...] = setting(
        "stride_kv", "of keys and values", WIDTH, default=(2, 2, 2)
    )
    query_paddings: tuple[int, ...] = setting(
        "padding_q", "zeros around queries", COUNT, default=(1, 1, 1)
    )
    query_strides: tuple[int, ...] = setting("stride_q", "of queries", WIDTH, default=(1, 1, 1))
    initializer_range: float = setting(
        "initializer_range", "standard deviation of the initial weights", DEVIATION, default=0.02
    )
    num_labels: int | None = None  # None = no classifier
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, tuple) and len(value) < len(self.depths):
                raise ConfigError(
                    f"{entry.name}={value}: there are {len(self.depths)} stages by their depths"
                )
        if not self.class_tokens[len(self.depths) - 1]:
            raise ConfigError("the last stage needs a class token, which a classifier looks at")
        for stage, dim in enumerate(self.dims[: len(self.depths)]):
            heads, window = self.num_heads[stage], self.windows[stage]
            if dim % heads:
                raise ConfigError(f"stage {stage} is {dim} wide, not a multiple of {heads} heads")
            if self.query_strides[stage] != 1 or 2 * self.query_paddings[stage] != window - 1:
                raise ConfigError(
                    f"stage {stage} needs a query for every token: an odd window, stride_q = 1 and "
                    f"padding_q = {window // 2} for a window of {window}"
                )
            if self.class_tokens[stage] and dim != self.dims[-1]:
                raise ConfigError(
                    f"stage {stage} is {dim} wide, but a class token is {self.dims[-1]}: give one "
                    "to the last stage alone"
                )
