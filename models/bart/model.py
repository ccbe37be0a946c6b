"""BART (Lewis et al., 2020): an encoder and a decoder of post-norm blocks, with learnt positions;
and Marian (Junczys-Dowmunt et al., 2018), whose positions are sines and cosines.

Axis names: B texts, S source tokens, T target tokens, K cache slots, D model width, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from models.bart.config import BartConfig
from models.layers.attention import CacheType
from models.layers.embedding import check_length
from models.layers.encoder_decoder import Slots, Source, TextToText, run_blocks
from models.layers.factory import LayerFactory
from models.layers.masks import padding_mask
from models.layers.rotary import Rotary, turn
from models.layers.source_block import SourceBlock

POSITION_OFFSET = 2
"""Rows of the tables of positions that no position has: a habit of fairseq."""


class Stack(nnx.Module):
    """The encoder or the decoder: positions, a norm of the embeddings, post-norm blocks."""

    def __init__(self, config: BartConfig, *, is_decoder: bool, rngs: nnx.Rngs) -> None:
        count = config.num_decoder_layers if is_decoder else config.num_layers
        make, self.longest = LayerFactory.of(config, rngs), config.max_seq_len
        self.position = (
            make.embedding(self.longest + POSITION_OFFSET, config.dim, "positions")
            if config.learned_positions
            else None
        )
        shape = config.block(is_decoder=is_decoder)
        self.embedding_norm = shape.norm() if config.embedding_norm else None
        self.blocks = nnx.List(
            [SourceBlock(shape, is_decoder=is_decoder, rngs=rngs) for _ in range(count)]
        )

    def begin(self, x: jax.Array, places: jax.Array) -> jax.Array:
        """Vectors of tokens [B, T, D] at places [T] or [B, T] -> what the first block gets."""
        places = jnp.clip(places, 0, self.longest - 1)
        if self.position is None:
            cos, sin = turn(places, x.shape[-1], Rotary())
            x = x + jnp.concatenate([sin, cos], axis=-1).astype(x.dtype)
        else:
            x = x + self.position(places + POSITION_OFFSET, x.dtype)
        return x if self.embedding_norm is None else self.embedding_norm(x)


class Bart(nnx.Module, TextToText):
    """A source text and the target text so far to next-token logits in FP32."""

    def __init__(self, config: BartConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        # Not split: BART has 50,265 tokens, which few meshes divide.
        make = LayerFactory.of(config, rngs)
        self.embedding = make.embedding(config.vocab_size, config.dim, "tokens")
        self.head_bias = make.constant(tokens=config.vocab_size) if config.logits_bias else None
        self.encoder = Stack(config, is_decoder=False, rngs=rngs)
        self.decoder = Stack(config, is_decoder=True, rngs=rngs)

    def encode(self, tokens: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """The encoder's output [B, S, D] of tokens [B, S]; real [B, S] is False at padding.

        Raises InputError if S is too long.
        """
        check_length(tokens.shape[1], self.config.max_seq_len)
        mask = None if real is None else padding_mask(real)
        x = self.encoder.begin(self._words(tokens), jnp.arange(tokens.shape[1]))
        for block in self.encoder.blocks:
            x, _ = block(x, mask, cache=None)
        return x

    def _words(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens, self.config.dtype)
        scale = self.config.dim**0.5 if self.config.scale_embedding else 1.0
        return x * jnp.asarray(scale, x.dtype)

    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """The decoder's output and the caches, as `EncoderDecoder.decode` tells."""
        x = self.decoder.begin(self._words(tokens), where.places)
        return run_blocks(self.decoder.blocks, x, source, caches, where.mask, start=start)

    def logits(self, x: jax.Array) -> jax.Array:
        """The logits FP32 [B, T, V] of x [B, T, D]."""
        logits = self.embedding.logits(x)
        if self.head_bias is None:
            return logits
        return logits + jax.lax.stop_gradient(self.head_bias[...].astype(jnp.float32))
