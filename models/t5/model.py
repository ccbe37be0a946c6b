"""T5 (Raffel et al., 2020), version 1.0 and 1.1: pre-norm blocks without biases, whose attention
knows positions by a bias of its scores alone.

Axis names: B texts, S source tokens, T target tokens, K cache slots, D model width, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import Attention, CacheType
from models.layers.cache import KVCache
from models.layers.embedding import Embedding
from models.layers.encoder_decoder import CacheShape, Slots, Source, TextToText, run_blocks
from models.layers.masks import padding_mask
from models.layers.mlp import MLP, GatedMLP
from models.layers.norms import RMSNorm
from models.layers.relative import RelativeBias
from models.t5.config import T5Config


class Block(nnx.Module):
    """x + attention(norm(x)); in the decoder x + cross(norm(x)); then x + mlp(norm(x))."""

    def __init__(self, config: T5Config, *, is_decoder: bool, rngs: nnx.Rngs) -> None:
        self.attention_norm, self.attention = _norm(config), _attention(config, rngs)
        self.cross_norm = _norm(config) if is_decoder else None
        self.cross_attention = _attention(config, rngs) if is_decoder else None
        self.mlp_norm, self.mlp = _norm(config), _feed_forward(config, rngs)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None,
        bias: jax.Array,
        *,
        source: tuple[KVCache, jax.Array | None] | None = None,
        cache: CacheType,
        start: ArrayLike = 0,
    ) -> tuple[jax.Array, CacheType]:
        attended, cache = self.attention(
            self.attention_norm(x), mask, cache=cache, start=start, bias=bias
        )
        x = x + attended
        if self.cross_attention is not None and self.cross_norm is not None and source is not None:
            x = x + self.cross_attention.attend(self.cross_norm(x), *source)
        return x + self.mlp(self.mlp_norm(x)), cache


class Stack(nnx.Module):
    """The blocks of the encoder or the decoder, their relative positions and the last norm."""

    def __init__(self, config: T5Config, *, is_decoder: bool, rngs: nnx.Rngs) -> None:
        count = config.num_decoder_layers if is_decoder else config.num_layers
        self.relative = RelativeBias(
            config.num_heads,
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            bidirectional=not is_decoder,
            stddev=config.initializer_factor * config.dim**-0.5,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.blocks = nnx.List(
            [Block(config, is_decoder=is_decoder, rngs=rngs) for _ in range(count)]
        )
        self.norm = _norm(config)


class Reader(nnx.Module):
    """What reads the source: the embedding and the encoder."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = _table(config, config.initializer_factor, rngs)
        self.encoder = Stack(config, is_decoder=False, rngs=rngs)

    def encode(self, tokens: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """The encoder's output [B, S, D] of tokens [B, S]; real [B, S] is False at padding."""
        slots = jnp.arange(tokens.shape[1])
        mask = None if real is None else padding_mask(real)
        bias = self.encoder.relative(slots, slots)
        x = self.embedding(tokens, self.config.dtype)
        for block in self.encoder.blocks:
            x, _ = block(x, mask, bias, cache=None)
        return self.encoder.norm(x)


class T5Encoder(Reader):
    """A text to the vectors of its tokens."""

    def __call__(self, tokens: jax.Array, *, real: jax.Array | None = None) -> dict[str, jax.Array]:
        """`hidden` [B, S, D], FP32, of tokens [B, S]; real [B, S] is False at padding."""
        return {"hidden": self.encode(tokens, real).astype(jnp.float32)}


class T5(Reader, TextToText):
    """A source text and the target text so far to next-token logits in FP32."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.decoder = Stack(config, is_decoder=True, rngs=rngs)
        self.head = (
            None
            if config.tie_embeddings
            else _table(config, config.initializer_factor * config.dim**-0.5, rngs)
        )

    @property
    def cache_shape(self) -> CacheShape:
        """See `EncoderDecoder`."""
        config = self.config
        return CacheShape(
            config.num_decoder_layers, config.num_heads, config.head_dim, config.dtype
        )

    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """See `EncoderDecoder`."""
        mask = where.mask
        bias = self.decoder.relative(where.slots, jnp.arange(mask.shape[-1]))
        x = self.embedding(tokens, self.config.dtype)
        blocks = self.decoder.blocks
        x, caches = run_blocks(blocks, x, source, caches, mask, bias, start=start)
        return self.decoder.norm(x), caches

    def logits(self, x: jax.Array) -> jax.Array:
        """See `EncoderDecoder`."""
        if self.config.scale_logits:
            x = x * jnp.asarray(self.config.dim**-0.5, x.dtype)
        return (self.embedding if self.head is None else self.head).logits(x)


def _norm(config: T5Config) -> RMSNorm:
    return RMSNorm(config.dim, eps=config.norm_eps, param_dtype=config.param_dtype)


def _attention(config: T5Config, rngs: nnx.Rngs) -> Attention:
    """The scores are not scaled; the initial queries are small instead."""
    factor = config.initializer_factor
    return Attention(
        config.dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_heads,
        head_dim=config.head_dim,
        scale=1.0,
        query_stddev=factor * (config.dim * config.head_dim) ** -0.5,
        stddev=factor * config.dim**-0.5,
        out_stddev=factor * (config.num_heads * config.head_dim) ** -0.5,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )


def _feed_forward(config: T5Config, rngs: nnx.Rngs) -> MLP | GatedMLP:
    kind = GatedMLP if config.gated else MLP
    return kind(
        config.dim,
        config.hidden_dim,
        act=config.act,
        bias=False,
        stddev=config.initializer_factor * config.dim**-0.5,
        out_stddev=config.initializer_factor * config.hidden_dim**-0.5,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )


def _table(config: T5Config, stddev: float, rngs: nnx.Rngs) -> Embedding:
    return Embedding(
        config.vocab_size, config.dim, stddev=stddev, param_dtype=config.param_dtype, rngs=rngs
    )
