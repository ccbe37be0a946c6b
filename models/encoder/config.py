"""Dimensions and constants of an encoder: one record for all families of models/encoder."""

from dataclasses import dataclass

from models.common_settings import NormalConfig
from models.encoder.bottleneck import Bottleneck
from models.encoder.disentangled import Disentangled
from models.encoder.ngrams import NGrams
from models.encoder.span import SpanConvolution
from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.layers.rotary import Rotary
from models.layers.text_heads import TextHeadConfig
from models.settings import TOKENS, WIDTH, check_multiple, setting


@dataclass(frozen=True)
class EncoderConfig(NormalConfig):
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    head: TextHeadConfig
    vocab_size: int = setting("vocab_size")
    num_layers: int = setting("num_hidden_layers")
    dim: int = setting("hidden_size")
    hidden_dim: int = setting("intermediate_size")
    num_heads: int = setting("num_attention_heads")
    num_positions: int = setting("max_position_embeddings", "number of position embeddings", TOKENS)
    embedding_dim: int = setting(
        "embedding_size", "width of the embeddings, if they are projected to `dim`", WIDTH
    )
    embedding_projection: bool = False
    type_vocab_size: int = setting("type_vocab_size", default=0)
    # RoBERTa: positions count the tokens other than this one, and begin one after it.
    position_pad: int | None = None
    rotary: Rotary | None = None  # RoFormer: heads turn, and there is no table of positions
    absolute_positions: bool = True  # a table of positions, unless heads turn
    disentangled: Disentangled | None = None  # DeBERTa: distances have scores of their own
    ngrams: NGrams | None = None  # DeBERTa: the first block's output has neighbours added to it
    bottleneck: Bottleneck | None = None  # MobileBERT: blocks are narrower than what they add to
    span: SpanConvolution | None = None  # ConvBERT: half of the attention is a convolution
    # ConvBERT: parts of the width have feed-forward blocks of their own.
    mlp_groups: int = setting("num_groups", default=1)
    languages: int = 0  # XLM: vectors of languages, which may be added to those of tokens
    trigrams: bool = False  # MobileBERT: projected are the vectors of a token and its neighbours
    pre_norm: bool = False  # ESM: norms stand before the parts of a block
    last_norm: bool = False  # ESM: a norm after all blocks
    embedding_norm: bool = True  # a norm of the embeddings
    # ESM: vectors of this token are zero, and the others of a text are scaled for it.
    dropped_token: int | None = None
    contacts: bool = False  # ESM: a head tells which residues touch each other
    relative_buckets: int = 0  # MPNet: buckets of a relative position bias; 0 = no bias
    # ALBERT: consecutive layers are one group of blocks, again and again.
    num_groups: int | None = setting("num_hidden_groups", default=None)
    blocks_per_group: int = setting("inner_group_num", default=1)
    norm_eps: float = setting("layer_norm_eps", default=1e-12)
    act: str = setting("hidden_act", default="gelu")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_dim % self.num_heads:
            raise ConfigError(
                f"dim={self.attention_dim} is not a multiple of num_heads={self.num_heads}. All "
                "heads must have the same width."
            )
        if self.num_groups is not None and not 0 < self.num_groups <= self.num_layers:
            raise ConfigError(
                f"num_groups={self.num_groups} must be from 1 to num_layers={self.num_layers}"
            )
        if not self.embedding_projection and self.embedding_dim != self.dim:
            raise ConfigError(
                f"embedding_dim={self.embedding_dim} differs from dim={self.dim}. Set "
                "embedding_projection."
            )
        for whole in ("dim", "hidden_dim"):
            check_multiple(self, whole, "mlp_groups")
        if self.span is not None:
            self._check_span(self.span)
        if self.rotary is not None and self.head_dim % 2:
            raise ConfigError(
                f"dim={self.dim} / num_heads={self.num_heads} gives a head width of "
                f"{self.head_dim}, which is odd, but rotary positions rotate pairs of dimensions"
            )

    @property
    def has_position_table(self) -> bool:
        """Whether each position has a vector that is added to the token's."""
        return self.rotary is None and self.absolute_positions

    def _check_span(self, span: SpanConvolution) -> None:
        if self.dim % (2 * span.num_heads):
            raise ConfigError(
                f"dim={self.dim} is not a multiple of {2 * span.num_heads}, the number of heads: "
                f"{span.num_heads} for attention and as many for the convolution"
            )
        if span.window % 2 == 0:
            raise ConfigError(
                f"conv_kernel_size={span.window} is even: the kernel size must be odd"
            )

    @property
    def attention_dim(self) -> int:
        """The width of all heads together."""
        return self.dim if self.bottleneck is None else self.bottleneck.dim

    @property
    def block(self) -> BlockShape:
        """The dimensions and constants of a block."""
        return BlockShape.of(self)

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.attention_dim // self.num_heads

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
