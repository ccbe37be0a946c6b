"""T5 (Raffel et al., 2020), version 1.0 and 1.1: pre-norm blocks without biases, whose attention
knows positions by a bias of its scores alone.

Axis names: B texts, S source tokens, T target tokens, K cache slots, D model width, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import Attention, CacheType
from models.layers.embedding import Embedding
from models.layers.encoder_decoder import Slots, Source, TextToText, run_blocks
from models.layers.factory import LayerFactory
from models.layers.masks import padding_mask
from models.layers.mlp import MLP, GatedMLP
from models.layers.norms import RMSNorm
from models.layers.relative import RelativeBias
from models.layers.source_block import SourceBlock
from models.t5.config import T5Config


class Layers(NamedTuple):
    """Makes the layers of a block, which have no biases."""

    config: T5Config
    pre_norm: bool = True

    def norm(self) -> RMSNorm:
        config = self.config
        return RMSNorm(config.dim, eps=config.norm_eps, param_dtype=config.param_dtype)

    def attention(self, rngs: nnx.Rngs) -> Attention:
        """The scores are not scaled; the initial queries are small instead."""
        config, factor = self.config, self.config.initializer_factor
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

    def mlp(self, rngs: nnx.Rngs) -> MLP | GatedMLP:
        config, factor = self.config, self.config.initializer_factor
        return (GatedMLP if config.gated else MLP)(
            config.dim,
            config.hidden_dim,
            act=config.act,
            bias=False,
            stddev=factor * config.dim**-0.5,
            out_stddev=factor * config.hidden_dim**-0.5,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )


class Stack(nnx.Module):
    """The blocks of the encoder or the decoder, their relative positions and the last norm."""

    def __init__(self, config: T5Config, *, is_decoder: bool, rngs: nnx.Rngs) -> None:
        count = config.num_decoder_layers if is_decoder else config.num_layers
        stddev = config.initializer_factor * config.dim**-0.5
        self.relative = RelativeBias(
            config.num_heads,
            LayerFactory(stddev, config.param_dtype, rngs),
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            bidirectional=not is_decoder,
        )
        make = Layers(config)
        blocks = (SourceBlock(make, is_decoder=is_decoder, rngs=rngs) for _ in range(count))
        self.blocks = nnx.List(blocks)
        self.norm = make.norm()


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

    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """The decoder's output and the caches, as `EncoderDecoder.decode` tells."""
        mask = where.mask
        bias = self.decoder.relative(where.slots, jnp.arange(mask.shape[-1]))
        x = self.embedding(tokens, self.config.dtype)
        blocks = self.decoder.blocks
        x, caches = run_blocks(blocks, x, source, caches, mask, bias, start=start)
        return self.decoder.norm(x), caches

    def logits(self, x: jax.Array) -> jax.Array:
        """The logits FP32 [B, T, V] of x [B, T, D]."""
        if self.config.scale_logits:
            x = x * jnp.asarray(self.config.dim**-0.5, x.dtype)
        return (self.embedding if self.head is None else self.head).logits(x)


def _table(config: T5Config, stddev: float, rngs: nnx.Rngs) -> Embedding:
    return LayerFactory(stddev, config.param_dtype, rngs).embedding(config.vocab_size, config.dim)
