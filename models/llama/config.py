"""Dimensions of a Llama-style decoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LlamaConfig:
    """Every dimension and constant of the model; the default is a byte-level language model.

    Raises ValueError if the dimensions do not fit together.
    """

    vocab_size: int = 256  # one token per byte
    num_layers: int = 4  # decoder blocks
    dim: int = 192  # width of the residual stream
    hidden_dim: int = 512  # width of the feed-forward block
    num_heads: int = 4  # query heads
    num_kv_heads: int = 2  # key and value heads; each serves num_heads / num_kv_heads queries
    head_dim: int = 48  # width of one head; even, because rotary positions turn pairs
    max_seq_len: int = 128  # longest context, in tokens
    rope_theta: float = 10_000.0  # base of the rotary wavelengths
    norm_eps: float = 1e-5  # added to the mean square in RMSNorm
    tie_embeddings: bool = True  # the head is the transposed embedding table
    initializer_range: float = 0.02  # standard deviation of the initial weights
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}: every key-value head serves the same number "
                "of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd: rotary positions turn pairs")
