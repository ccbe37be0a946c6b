"""Dimensions and constants of ModernBERT."""

from dataclasses import dataclass, field

from models.common_settings import TransformerConfig
from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.layers.rotary import Rotary
from models.layers.text_heads import TextHeadConfig
from models.settings import setting


@dataclass(frozen=True)
class ModernBertConfig(TransformerConfig):
    """Every dimension and constant of the model; the default has the size of ModernBERT-base.

    Raises ConfigError if the dimensions do not fit together.
    """

    head: TextHeadConfig = field(default_factory=lambda: TextHeadConfig("feature-extraction"))
    rotary: Rotary = field(default_factory=Rotary)  # of the layers that see the whole text
    local_rotary: Rotary = field(default_factory=Rotary)  # of those that see their neighbourhood
    local_layers: tuple[int, ...] = ()
    reach: int = 64  # how many tokens to either side a local layer sees
    vocab_size: int = setting("vocab_size", default=50_368)
    num_layers: int = setting("num_hidden_layers", default=22)
    hidden_dim: int = setting("intermediate_size", default=1152)
    max_seq_len: int = setting("max_position_embeddings", default=8192)
    norm_eps: float = setting("norm_eps", default=1e-5)
    norm_bias: bool = setting("norm_bias", default=False)
    attention_bias: bool = setting("attention_bias", default=False)
    mlp_bias: bool = setting("mlp_bias", default=False)
    act: str = setting("hidden_activation", default="gelu")

    def __post_init__(self) -> None:
        super().__post_init__()
        for rotary in (self.rotary, self.local_rotary):
            if rotary.width(self.head_dim) % 2:
                raise ConfigError(
                    f"the rotary width is {rotary.width(self.head_dim)} per head, but it must be "
                    "even: rotary positions rotate pairs of dimensions"
                )

    @property
    def block(self) -> BlockShape:
        """What is added to the residual stream is drawn the smaller, the more layers add to it."""
        return BlockShape.of(
            self,
            qkv_bias=self.attention_bias,
            out_bias=self.attention_bias,
            gated=True,
            out_stddev=self.initializer_range / (2 * self.num_layers) ** 0.5,
        )
