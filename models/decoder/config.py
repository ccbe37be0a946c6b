"""Dimensions and constants of a decoder: one record for all families of models/decoder."""

from dataclasses import dataclass, field

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.moe import Experts
from models.layers.rotary import Rotary


@dataclass(frozen=True)
class DecoderConfig:
    """Every dimension and constant of the model; the default is a byte-level language model.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int = 256  # one token per byte
    num_layers: int = 4  # decoder blocks
    dim: int = 192  # width of the residual stream
    hidden_dim: int = 512  # width of the feed-forward block
    num_heads: int = 4  # query heads
    num_kv_heads: int = 2  # key and value heads; each serves num_heads / num_kv_heads queries
    head_dim: int = 48  # width of one head; even, because rotary positions turn pairs
    max_seq_len: int = 128  # longest context, in tokens
    rotary: Rotary = field(default_factory=Rotary)
    norm_eps: float = 1e-5  # added to the mean square in RMSNorm
    tie_embeddings: bool = True  # the head is the transposed embedding table
    initializer_range: float = 0.02  # standard deviation of the initial weights
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    # What only some families have; the defaults are Llama's.
    act: str = "silu"  # of the feed-forward block
    attention_bias: bool = False  # of queries, keys and values
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of queries and keys
    norm_offset: float = 0.0  # added to every norm's scale
    sandwich_norms: bool = False  # a norm after attention and after the feed-forward block too
    sliding_window: int | None = None  # a query sees that many keys, itself included, …
    sliding_layers: tuple[int, ...] = ()  # … in these layers
    sliding_rotary: Rotary | None = None  # of these layers, if another
    no_rotary_layers: tuple[int, ...] = ()  # layers that do not know positions
    attention_scale: float | None = None  # of the scores; None = 1 / sqrt(head_dim)
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what each block adds to the residual stream
    logit_divisor: float = 1.0
    experts: Experts | None = None  # a mixture of experts as feed-forward block, …
    dense_layers: tuple[int, ...] = ()  # … but not in these layers

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}: every key-value head serves the same number "
                "of query heads"
            )
        for rotary in filter(None, (self.rotary, self.sliding_rotary)):
            self._check_rotary(rotary)
        if self.sliding_layers and not self.sliding_window:
            raise ConfigError(
                f"layers {list(self.sliding_layers)} have a sliding window, but "
                f"sliding_window={self.sliding_window}: give its size in tokens"
            )
        activation(self.act)

    def _check_rotary(self, rotary: Rotary) -> None:
        width = rotary.width(self.head_dim)
        if width % 2:
            raise ConfigError(
                f"head_dim={self.head_dim} is odd: rotary positions turn pairs"
                if width == self.head_dim
                else f"rotary fraction {rotary.fraction} of head_dim={self.head_dim} turns {width} "
                "numbers, which is odd: rotary positions turn pairs"
            )
        for factors in filter(None, (rotary.short_factors, rotary.long_factors)):
            if len(factors) != width // 2:
                raise ConfigError(
                    f"longrope has {len(factors)} factors, but {width // 2} pairs of numbers turn: "
                    "one factor per pair is needed"
                )

    def window(self, layer: int) -> int | None:
        """How many keys a query attends to in that layer, its own included; None = all earlier."""
        return self.sliding_window if layer in self.sliding_layers else None

    def layer_rotary(self, layer: int) -> Rotary | None:
        """The rotary position embedding of that layer's heads, if it has one."""
        if layer in self.no_rotary_layers:
            return None
        sliding = layer in self.sliding_layers and self.sliding_rotary is not None
        return self.sliding_rotary if sliding else self.rotary

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths beyond which the rotation of all keys changes, so the cache is refilled."""
        if self.rotary.kind == "longrope" and self.rotary.original_length < self.max_seq_len:
            return (self.rotary.original_length,)
        return ()
