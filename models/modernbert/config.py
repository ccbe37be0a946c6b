"""Dimensions and constants of ModernBERT."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.rotary import Rotary
from models.layers.text_heads import TextHeadConfig
from models.settings import (
    ACTIVATION,
    EPS,
    LAYERS,
    TOKENS,
    WIDTH,
    NormalConfig,
    check_multiple,
    setting,
)


@dataclass(frozen=True)
class ModernBertConfig(NormalConfig):
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    head: TextHeadConfig
    rotary: Rotary  # of the layers that see the whole text
    local_rotary: Rotary  # of the layers that see their neighbourhood
    local_layers: tuple[int, ...]
    reach: int  # how many tokens to either side a local layer sees
    vocab_size: int = setting("vocab_size", "vocabulary size", TOKENS, default=50_368)
    num_layers: int = setting("num_hidden_layers", "number of layers", LAYERS, default=22)
    dim: int = setting("hidden_size", "width of the residual stream", WIDTH, default=768)
    hidden_dim: int = setting(
        "intermediate_size", "width of the feed-forward block", WIDTH, default=1152
    )
    num_heads: int = setting("num_attention_heads", "number of attention heads", WIDTH, default=12)
    max_seq_len: int = setting(
        "max_position_embeddings", "longest text, in tokens", TOKENS, default=8192
    )
    norm_eps: float = setting("norm_eps", "LayerNorm epsilon", EPS, default=1e-5)
    norm_bias: bool = setting("norm_bias", "biases of the norms", default=False)
    attention_bias: bool = setting(
        "attention_bias", "biases of the attention projections", default=False
    )
    mlp_bias: bool = setting("mlp_bias", "biases of the feed-forward block", default=False)
    act: str = setting(
        "hidden_activation", "activation of the feed-forward block", ACTIVATION, default="gelu"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")
        for rotary in (self.rotary, self.local_rotary):
            if rotary.width(self.head_dim) % 2:
                raise ConfigError(
                    f"the rotary width is {rotary.width(self.head_dim)} per head, but it must be "
                    "even: rotary positions rotate pairs of dimensions"
                )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads
