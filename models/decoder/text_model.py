"""A decoder without logits of the next token: its outputs, or classes of a text or of its tokens.

Axis names: B texts, T tokens, D model width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder, Positions
from models.errors import ConfigError
from models.layers.embedding import Embedding
from models.layers.text_heads import TextHead
from models.layers.text_reader import TextReader


class TextDecoder(TextReader):
    """A decoder and a head.

    Raises ConfigError if the config names no head.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        if config.head is None:
            raise ConfigError(
                "a decoder that reads texts needs head, the config of its output head"
            )
        self.config = config
        self.decoder = Decoder(config, rngs=rngs)
        self.head = TextHead(config, rngs=rngs)

    @property
    def words(self) -> Embedding:
        return self.decoder.embedding

    def encode(
        self,
        tokens: jax.Array,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """See `TextReader`: the normed output of the last block."""
        where = self._positions(tokens, real, segments, positions)
        return self.decoder.norm(self.decoder.run(self.decoder.embed(tokens, where), where))

    def _positions(
        self,
        tokens: jax.Array,
        real: jax.Array | None,
        segments: jax.Array | None,
        positions: jax.Array | None,
    ) -> Positions:
        if real is not None and segments is None and positions is None:
            segments = real.astype(jnp.int32)  # text and padding do not see each other
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return self.decoder.positions(tokens.shape[1], segments=segments, positions=positions)
