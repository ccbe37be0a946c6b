"""Dimensions and constants of ModernBERT."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.rotary import Rotary
from models.layers.text_heads import TextHeadConfig


@dataclass(frozen=True)
class ModernBertConfig:
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int
    num_layers: int
    dim: int  # width of the residual stream
    hidden_dim: int  # width of the feed-forward block
    num_heads: int
    max_seq_len: int  # longest text, in tokens
    head: TextHeadConfig
    rotary: Rotary  # of the layers that see the whole text
    local_rotary: Rotary  # of the layers that see their neighbourhood
    local_layers: tuple[int, ...]
    reach: int  # how many tokens to either side a local layer sees
    norm_eps: float = 1e-5  # added to the variance in LayerNorm
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    act: str = "gelu"  # of the feed-forward block
    initializer_range: float = 0.02  # standard deviation of the initial weights
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ConfigError(
                f"dim={self.dim} is not a multiple of num_heads={self.num_heads}: every head has "
                "the same width"
            )
        for rotary in (self.rotary, self.local_rotary):
            if rotary.width(self.head_dim) % 2:
                raise ConfigError(
                    f"{rotary.width(self.head_dim)} numbers of each head turn, which is odd: "
                    "rotary positions turn pairs"
                )
        activation(self.act)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads
