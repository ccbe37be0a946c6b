"""Dimensions and constants of T5."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation


@dataclass(frozen=True)
class T5Config:
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int
    num_layers: int  # of the encoder
    num_decoder_layers: int
    dim: int  # width of the residual stream
    hidden_dim: int  # width of the feed-forward block
    num_heads: int
    head_dim: int  # width of one head; need not be dim / num_heads
    start_token: int  # what the decoder's text begins with
    max_seq_len: int = 512  # longest text in training; relative positions set no limit
    num_buckets: int = 32  # of relative positions
    max_distance: int = 128  # farther tokens share a bucket
    act: str = "relu"  # of the feed-forward block
    gated: bool = False  # the feed-forward block multiplies two projections
    norm_eps: float = 1e-6  # added to the mean square in RMSNorm
    tie_embeddings: bool = True  # the head is the transposed embedding table
    scale_logits: bool = True  # the decoder's output is divided by sqrt(dim) before the head
    initializer_factor: float = 1.0  # of the initial weights
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        if self.num_buckets % 4 or not 2 * self.max_distance > self.num_buckets:
            raise ConfigError(
                f"num_buckets={self.num_buckets} and max_distance={self.max_distance} do not fit: "
                "a multiple of 4 that is smaller than twice the distance is needed"
            )
        activation(self.act)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths at which the cache must be filled anew: none."""
        return ()
