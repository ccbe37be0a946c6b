"""Dimensions and constants of ModernBERT."""

from dataclasses import dataclass

from models.common_settings import NormalConfig, common
from models.errors import ConfigError
from models.layers.rotary import Rotary
from models.layers.text_heads import TextHeadConfig
from models.settings import ACTIVATION, check_multiple, setting


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
    vocab_size: int = common("vocab_size", default=50_368)
    num_layers: int = common("num_hidden_layers", default=22)
    dim: int = common("hidden_size", default=768)
    hidden_dim: int = common("intermediate_size", default=1152)
    num_heads: int = common("num_attention_heads", default=12)
    max_seq_len: int = common("max_position_embeddings", default=8192)
    norm_eps: float = common("norm_eps", default=1e-5)
    norm_bias: bool = setting("norm_bias", "biases of the norms", default=False)
    attention_bias: bool = common("attention_bias", default=False)
    mlp_bias: bool = common("mlp_bias", default=False)
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
