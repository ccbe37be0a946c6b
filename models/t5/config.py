"""Dimensions and constants of T5."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.encoder_decoder import CacheShape
from models.settings import (
    LAYERS,
    ModelConfig,
    setting,
)


@dataclass(frozen=True)
class T5Config(ModelConfig):
    """Every dimension and constant of the model; the default is T5 small.

    Raises ConfigError if the dimensions do not fit together.
    """

    start_token: int = 0  # what the decoder's text begins with
    vocab_size: int = setting("vocab_size", default=32_128)
    num_layers: int = setting("num_layers", "number of encoder layers", LAYERS, default=6)
    num_decoder_layers: int = setting("num_decoder_layers", default=6)
    dim: int = setting("d_model", default=512)
    hidden_dim: int = setting("d_ff", default=2048)
    num_heads: int = setting("num_heads", default=8)
    head_dim: int = setting("d_kv", default=64)
    max_seq_len: int = setting("n_positions", default=512)
    num_buckets: int = setting("relative_attention_num_buckets", default=32)
    max_distance: int = setting("relative_attention_max_distance", default=128)
    act: str = "relu"  # of the feed-forward block
    gated: bool = False  # the feed-forward block multiplies two projections
    norm_eps: float = setting("layer_norm_epsilon", default=1e-6)
    tie_embeddings: bool = True  # the head is the transposed embedding table
    scale_logits: bool = True  # the decoder's output is divided by sqrt(dim) before the head
    initializer_factor: float = setting("initializer_factor", default=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets % 4 or not 2 * self.max_distance > self.num_buckets:
            raise ConfigError(
                f"num_buckets={self.num_buckets} must be a multiple of 4 and less than twice "
                f"max_distance={self.max_distance}"
            )
        activation(self.act)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths at which the cache must be filled anew: none."""
        return ()

    @property
    def cache_shape(self) -> CacheShape:
        """The shape of what a decoder keeps of a target."""
        return CacheShape(self.num_decoder_layers, self.num_heads, self.head_dim, self.dtype)
