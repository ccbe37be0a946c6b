"""Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022.

Axis names: B batch, F frames of the spectrogram, M mel bands, S = F / 2 encoder positions, T text
positions, D model width, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import CacheType
from models.layers.blocks import Block
from models.layers.embedding import check_length
from models.layers.encoder_decoder import (
    EncoderDecoder,
    Slots,
    Source,
    SourcePlaces,
    look,
    run_blocks,
)
from models.layers.factory import LayerFactory
from models.layers.pixels import check_spectrograms
from models.layers.source_block import SourceBlock
from models.whisper.config import WhisperConfig

_LONGEST_PERIOD = 10_000.0  # of the encoder's positions, in radians


class Encoder(nnx.Module):
    """Spectrograms to hidden states."""

    def __init__(self, config: WhisperConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config

        make, dim = LayerFactory.of(config, rngs), config.dim
        self.conv_1 = make.conv(config.num_mels, dim, (3,), padding=1, axes=("mels", "hidden_dim"))
        self.conv_2 = make.conv(dim, dim, (3,), stride=2, padding=1, axes=("hidden_dim", "dim"))
        positions = sinusoids(config.max_source_len, config.dim)
        self.sinusoids = nnx.Param(
            jnp.asarray(positions, config.param_dtype), axes=("positions", "dim")
        )
        shape = config.block(is_decoder=False)
        self.blocks = nnx.List([Block(shape, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = shape.norm()

    def __call__(self, features: jax.Array) -> jax.Array:
        """Log-mel features [B, F, M] -> [B, S, D]."""
        check_spectrograms(features, self.config.num_frames, self.config.num_mels)
        x = jax.nn.gelu(self.conv_1(features.astype(self.config.dtype)), approximate=False)
        x = jax.nn.gelu(self.conv_2(x), approximate=False)
        # The positions are stored with the weights, but not learnt.
        x = x + jax.lax.stop_gradient(self.sinusoids[...]).astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Decoder(nnx.Module):
    """Tokens and the encoded sound to hidden states."""

    def __init__(self, config: WhisperConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory.of(config, rngs)
        # Not split: most Whisper vocabularies have an odd size.
        self.embedding = make.embedding(config.vocab_size, config.dim, "tokens")
        self.positions = make.table(positions=config.max_seq_len, dim=config.dim)
        shape = config.block(is_decoder=True)
        self.blocks = nnx.List(
            [
                SourceBlock(shape, is_decoder=True, rngs=rngs)
                for _ in range(config.num_decoder_layers)
            ]
        )
        self.norm = shape.norm()

    def __call__(
        self,
        tokens: jax.Array,
        sound: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """The output [B, T, D], normed, and the caches."""
        positions = jnp.take(self.positions[...], jnp.maximum(where.places, 0), 0, mode="clip")
        x = self.embedding(tokens, self.config.dtype)
        x = x + positions.astype(x.dtype)
        x, caches = run_blocks(self.blocks, x, sound, caches, where.mask, start=start)
        return self.norm(x), caches


class Whisper(nnx.Module, EncoderDecoder):
    """Log-mel features and tokens to next-token logits in FP32."""

    def __init__(self, config: WhisperConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)

    def __call__(self, features: jax.Array, tokens: jax.Array) -> jax.Array:
        """Logits [B, T, V] of whole texts: features [B, F, M], tokens [B, T].

        Raises InputError if T is too long.
        """
        check_length(tokens.shape[1], self.config.max_seq_len)
        return self.after(self.look_at(features=features), tokens)

    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """The decoder's output and the caches, as `EncoderDecoder.decode` tells."""
        return self.decoder(tokens, source, caches, where, start)

    def logits(self, x: jax.Array) -> jax.Array:
        """The logits FP32 [B, T, V] of x [B, T, D]."""
        return self.decoder.embedding.logits(x)

    def read(self, source: jax.Array, length: jax.Array) -> Source:
        """What the decoder looks at of features [F, M], always as long as the model takes."""
        return self.look_at(features=source[None])

    def init_sources(self, places: int, length: int) -> SourcePlaces:
        """Empty places for sounds: the encoder makes one position of two frames."""
        return super().init_sources(places, length // 2)

    def look_at(self, *, features: jax.Array) -> Source:
        """What the decoder looks at of features [B, F, M]."""
        attention = (block.cross_attention for block in self.decoder.blocks)
        return look(attention, self.encoder(features), None)


def sinusoids(length: int, dim: int) -> np.ndarray:
    """Sines, then cosines, of wavelengths from 2π to 2π · 10,000 positions: [length, dim]."""
    pairs = dim // 2
    frequencies = _LONGEST_PERIOD ** (-np.arange(pairs) / max(pairs - 1, 1))
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
