"""Dimensions and constants of a decoder: one record for all families of models/decoder."""

from dataclasses import dataclass, field

from models.common_settings import NormalConfig
from models.errors import ConfigError
from models.layers.latent import Latent
from models.layers.masks import Chunks, Reach
from models.layers.moe import Experts
from models.layers.rotary import Rotary
from models.layers.temperature import Temperature
from models.layers.text_heads import TextHeadConfig
from models.settings import (
    TOKENS,
    WIDTH,
    OneOf,
    check_multiple,
    setting,
)


@dataclass(frozen=True)
class DecoderConfig(NormalConfig):
    """Every dimension and constant of the model; the default is a byte-level language model.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int = setting("vocab_size", default=256)
    num_layers: int = setting("num_hidden_layers", default=4)
    dim: int = setting("hidden_size", default=192)
    hidden_dim: int = setting("intermediate_size", default=512)
    num_heads: int = setting("num_attention_heads", "number of query heads", WIDTH, default=4)
    num_kv_heads: int = setting("num_key_value_heads", default=2)
    head_dim: int = setting("head_dim", default=48)
    max_seq_len: int = setting("max_position_embeddings", default=128)
    rotary: Rotary = field(default_factory=Rotary)
    norm_eps: float = setting("rms_norm_eps", default=1e-5)
    tie_embeddings: bool = setting("tie_word_embeddings", default=True)

    # What only some families have; the defaults are Llama's.
    act: str = setting("hidden_act", default="silu")
    attention_bias: bool = setting("attention_bias", default=False)
    attention_out_bias: bool = setting("attention_bias", default=False)
    mlp_bias: bool = setting("mlp_bias", default=False)
    gated_mlp: bool = True  # a product of two projections; otherwise one projection
    layer_norm: bool = False  # LayerNorm in place of RMSNorm, …
    norm_bias: bool = True  # … with biases
    # A norm over each head of queries and keys, with a scale that they share or one of their "own",
    # or over all heads "jointly".
    qk_norm: str | None = setting(
        None, "norm of queries and keys", OneOf(("shared", "own", "jointly")), default=None
    )
    qk_unit_norm: float | None = None  # the same without a scale, where heads turn: its eps
    norm_offset: float = 0.0  # added to every norm's scale
    pre_norms: bool = True  # a norm before attention and before the feed-forward block, …
    sandwich_norms: bool = False  # … and one after each of both
    parallel_residual: bool = False  # attention and the feed-forward block have the same input, …
    shared_norm: bool = False  # … of one norm
    learned_positions: bool = False  # a table of max_seq_len vectors is added to the embeddings
    sliding_window: int | None = setting(
        None, "sliding window, in tokens, including the query's own", TOKENS, default=None
    )
    sliding_layers: tuple[int, ...] = ()  # layers with a sliding window
    sliding_rotary: Rotary | None = None  # of these layers, if it differs
    attention_chunk_size: int | None = setting("attention_chunk_size", default=None)
    chunked_layers: tuple[int, ...] = ()  # layers with chunked attention
    no_rotary_layers: tuple[int, ...] = ()  # layers that do not know positions, …
    temperature: Temperature | None = None  # … except by this
    attention_scale: float | None = setting("attention_multiplier", default=None)
    attention_scale_by_layer: bool = setting("scale_attn_by_inverse_layer_idx", default=False)
    latent: Latent | None = None  # keys and values are made of a short vector of this width
    attention_sinks: bool = False  # heads have a score of one more key, whose value is zero
    attention_softcap: float | None = setting("attn_logit_softcapping", default=None)
    logit_softcap: float | None = setting("final_logit_softcapping", default=None)
    embedding_multiplier: float = setting("embedding_multiplier", default=1.0)
    residual_multiplier: float = setting("residual_multiplier", default=1.0)
    logit_divisor: float = setting("logits_scaling", default=1.0)
    head_bias: bool = False  # of the logits
    vocab_padding: int = 0  # rows behind the vocabulary that tables are filled up with
    head: TextHeadConfig | None = None  # in place of logits of the next token
    experts: Experts | None = None  # a mixture of experts as feed-forward block, …
    dense_layers: tuple[int, ...] = ()  # … but not in these layers

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "num_heads", "num_kv_heads")
        for rotary in filter(None, map(self.layer_rotary, range(self.num_layers))):
            self._check_rotary(rotary)
        if self.shared_norm and not self.parallel_residual:
            raise ConfigError(
                "shared_norm needs parallel_residual: without it, attention and the feed-forward "
                "block have different inputs"
            )
        if self.sliding_layers and not self.sliding_window:
            raise ConfigError(
                f"layers {list(self.sliding_layers)} have a sliding window, but "
                f"sliding_window={self.sliding_window}. Give its size in tokens."
            )
        if self.chunked_layers and not self.attention_chunk_size:
            raise ConfigError(
                f"layers {list(self.chunked_layers)} use chunked attention, but "
                f"attention_chunk_size={self.attention_chunk_size}. Give the chunk size in tokens."
            )

    @property
    def turned_dim(self) -> int:
        """Numbers of a head among which those are that turn."""
        return self.head_dim if self.latent is None else self.latent.turned_dim

    def _check_rotary(self, rotary: Rotary) -> None:
        width = rotary.width(self.turned_dim)
        if width % 2:
            raise ConfigError(
                f"head_dim={width} is odd, but rotary positions rotate pairs of dimensions"
                if width == self.turned_dim
                else f"a rotary fraction of {rotary.fraction} of head_dim={self.head_dim} is "
                f"{width} dimensions, which is odd, but rotary positions rotate pairs of "
                "dimensions"
            )
        for factors in filter(None, (rotary.short_factors, rotary.long_factors)):
            if len(factors) != width // 2:
                raise ConfigError(
                    f"longrope has {len(factors)} factors, but needs {width // 2}: one for each "
                    "pair of rotated dimensions"
                )

    def window(self, layer: int) -> Reach:
        """How many keys a query attends to in that layer, its own included, or in which chunks;
        None = all earlier."""
        if layer in self.chunked_layers and self.attention_chunk_size is not None:
            return Chunks(self.attention_chunk_size)
        return self.sliding_window if layer in self.sliding_layers else None

    def layer_rotary(self, layer: int) -> Rotary | None:
        """The rotary position embedding of that layer's heads, if it has one."""
        if layer in self.no_rotary_layers:
            return None
        sliding = layer in self.sliding_layers and self.sliding_rotary is not None
        return self.sliding_rotary if sliding else self.rotary

    def layer_temperature(self, layer: int) -> Temperature | None:
        """What that layer's queries are multiplied by, if anything."""
        return self.temperature if layer in self.no_rotary_layers else None

    def layer_scale(self, layer: int) -> float | None:
        """What that layer's scores are multiplied by; None = 1 / sqrt(head_dim)."""
        if not self.attention_scale_by_layer:
            return self.attention_scale
        scale = self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
        return scale / (layer + 1)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths beyond which the rotation of all keys changes, so the cache is refilled."""
        if self.rotary.kind == "longrope" and self.rotary.original_length < self.max_seq_len:
            return (self.rotary.original_length,)
        return ()
