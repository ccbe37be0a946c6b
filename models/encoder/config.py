"""Dimensions and constants of an encoder: one record for all families of models/encoder."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.text_heads import TextHeadConfig


@dataclass(frozen=True)
class EncoderConfig:
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int
    num_layers: int
    dim: int  # width of the residual stream
    hidden_dim: int  # width of the feed-forward block
    num_heads: int
    num_positions: int  # rows of the position table
    head: TextHeadConfig
    embedding_dim: int  # width of the embeddings, if they are projected to `dim`
    embedding_projection: bool = False
    type_vocab_size: int = 0  # kinds of text in a sequence; 0 = not told apart
    # RoBERTa: positions count the tokens other than this one, and begin one after it.
    position_pad: int | None = None
    relative_buckets: int = 0  # MPNet: buckets of a relative position bias; 0 = no bias
    # ALBERT: consecutive layers are one group of blocks, again and again.
    num_groups: int | None = None  # None = every layer is a block of its own
    blocks_per_group: int = 1
    norm_eps: float = 1e-12  # added to the variance in LayerNorm
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
        if self.num_groups is not None and not 0 < self.num_groups <= self.num_layers:
            raise ConfigError(
                f"num_groups={self.num_groups} groups do not share num_layers={self.num_layers} "
                "layers: there are at most as many groups as layers"
            )
        if not self.embedding_projection and self.embedding_dim != self.dim:
            raise ConfigError(
                f"embedding_dim={self.embedding_dim} differs from dim={self.dim}: set "
                "embedding_projection"
            )
        activation(self.act)

    @property
    def num_blocks(self) -> int:
        """How many blocks have weights of their own."""
        groups = self.num_layers if self.num_groups is None else self.num_groups
        return groups * self.blocks_per_group

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the blocks in order of execution; ALBERT repeats them."""
        groups = self.num_layers if self.num_groups is None else self.num_groups
        return tuple(
            layer * groups // self.num_layers * self.blocks_per_group + place
            for layer in range(self.num_layers)
            for place in range(self.blocks_per_group)
        )

    @property
    def max_seq_len(self) -> int:
        """The longest text, in tokens."""
        return self.num_positions - (0 if self.position_pad is None else self.position_pad + 1)
