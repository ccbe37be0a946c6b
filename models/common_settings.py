"""Fields of config.json that several families have, each with its meaning and its range."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from models.settings import (
    ACTIVATION,
    DEVIATION,
    EPS,
    LAYERS,
    POSITIVE,
    TOKENS,
    WIDTH,
    ModelConfig,
    OneOf,
    Range,
    check_multiple,
    setting,
)

_ACT = ("activation function", ACTIVATION)
_DEVIATION = ("standard deviation of the initial weights", DEVIATION)
_DIM = ("width of the residual stream", WIDTH)
_HEADS = ("number of attention heads", WIDTH)

COMMON: Mapping[str, tuple[str, Range | OneOf | None]] = {
    "activation_function": _ACT,
    "attention_bias": ("biases of the attention projections", None),
    "d_model": _DIM,
    "decoder_attention_heads": ("number of attention heads in the decoder", WIDTH),
    "decoder_ffn_dim": ("width of the decoder's feed-forward block", WIDTH),
    "decoder_layers": ("number of decoder layers", LAYERS),
    "depths": ("number of blocks in each stage", LAYERS),
    "encoder_attention_heads": ("number of attention heads in the encoder", WIDTH),
    "encoder_ffn_dim": ("width of the encoder's feed-forward block", WIDTH),
    "encoder_layers": ("number of encoder layers", LAYERS),
    "expand_ratio": ("expansion ratio of the inverted residuals", POSITIVE),
    "hidden_act": _ACT,
    "hidden_size": _DIM,
    "hidden_sizes": ("width of each stage", WIDTH),
    "image_size": ("image height and width, in pixels", WIDTH),
    "init_std": _DEVIATION,
    "initializer_range": _DEVIATION,
    "intermediate_size": ("width of the feed-forward block", WIDTH),
    "layer_norm_eps": ("norm epsilon", EPS),
    "max_position_embeddings": ("longest text, in tokens", TOKENS),
    "mlp_bias": ("biases of the feed-forward block", None),
    "mlp_ratio": ("expansion ratio of the feed-forward block", POSITIVE),
    "norm_eps": ("norm epsilon", EPS),
    "num_attention_heads": _HEADS,
    "num_channels": ("channels of the input image", WIDTH),
    "num_heads": _HEADS,
    "num_hidden_layers": ("number of layers", LAYERS),
    "output_stride": ("ratio of input to output resolution", OneOf((8, 16, 32))),
    "patch_size": ("patch height and width, in pixels", WIDTH),
    "qkv_bias": ("biases of the query, key and value projections", None),
    "vocab_size": ("vocabulary size", TOKENS),
}


def common(key: str, *, default: Any = MISSING) -> Any:
    """A field of a frozen dataclass that several families have, by its name in config.json."""
    meaning, within = COMMON[key]
    return setting(key, meaning, within, default=default)


@dataclass(frozen=True, kw_only=True)
class NormalConfig(ModelConfig):
    """The settings of models whose initial weights are drawn from a normal distribution."""

    initializer_range: float = common("initializer_range", default=0.02)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(NormalConfig):
    """Of blocks that are all alike, with BERT's names; the defaults are those of BERT-Base."""

    num_layers: int = common("num_hidden_layers", default=12)
    dim: int = common("hidden_size", default=768)
    hidden_dim: int = common("intermediate_size", default=3072)
    num_heads: int = common("num_attention_heads", default=12)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.dim // self.num_heads
