"""A decoder without logits of the next token: its outputs, or classes of a text or of its tokens.

Axis names: B texts, T tokens, D model width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder, Positions
from models.errors import ConfigError
from models.layers.text_heads import Outputs, TextHead, outputs_per_text


class TextDecoder(nnx.Module):
    """Tokens to the outputs of the head; see models/layers/text_heads.py for their names.

    Raises ConfigError if the config names no head.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        if config.head is None:
            raise ConfigError(
                "a decoder that reads texts needs head, the config of its output head"
            )
        self.config = config
        self.decoder = Decoder(config, rngs=rngs)
        self.head = TextHead.of(config, rngs)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> Outputs:
        """The outputs of tokens [B, T].

        real [B, T] is False at padding, which the other tokens do not see. Where several texts
        share a row, a token sees those with its number in segments [B, T], and stands at its place
        in positions [B, T].
        """
        others = {"segments": segments, "positions": positions}
        return outputs_per_text(self._outputs, tokens, real=real, **others)

    def _outputs(
        self,
        tokens: jax.Array,
        real: jax.Array | None,
        segments: jax.Array | None,
        positions: jax.Array | None,
    ) -> Outputs:
        where = self._positions(tokens, real, segments, positions)
        x = self.decoder.run(self.decoder.embed(tokens, where), where)
        return self.head(self.decoder.norm(x), real, self.decoder.embedding)

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
