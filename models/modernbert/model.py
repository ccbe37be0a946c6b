"""ModernBERT (Warner et al., 2024): pre-norm blocks of bidirectional attention with rotary
positions and a gated feed-forward block; most layers see a neighbourhood only.

Texts are padded here; the published implementation packs them. Real tokens see the same tokens at
the same distances in both, so their outputs are equal.

Axis names: B texts, C choices, T tokens, D model width.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.blocks import Block
from models.layers.embedding import Embedding
from models.layers.factory import LayerFactory
from models.layers.masks import neighbour_mask, text_mask
from models.layers.rotary import Turn, turn
from models.layers.text_heads import TextHead
from models.layers.text_reader import TextReader
from models.modernbert.config import ModernBertConfig

View = tuple[jax.Array | None, Turn]  # what a layer may look at, and how its heads turn


class RotaryBlock(Block):
    """A block whose heads turn; the first one's input is normed already."""

    def __init__(self, config: ModernBertConfig, layer: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(config.block, rngs=rngs)
        self.is_local = layer in config.local_layers
        if layer == 0:
            self.attention_norm = None

    def attend(self, x: jax.Array, views: Mapping[bool, View]) -> jax.Array:
        mask, by = views[self.is_local]
        return self.attention(x, mask, turn=by)


class ModernBert(TextReader):
    """Blocks between two norms."""

    def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory.of(config, rngs)
        self.embedding = make.embedding(config.vocab_size, config.dim, "tokens")
        self.embedding_norm = config.block.norm()
        self.blocks = nnx.List(
            [RotaryBlock(config, i, rngs=rngs) for i in range(config.num_layers)]
        )
        self.norm = config.block.norm()
        self.head = TextHead(config, norm_bias=config.norm_bias, rngs=rngs)

    @property
    def words(self) -> Embedding:
        return self.embedding

    def encode(
        self,
        tokens: jax.Array,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """See `TextReader`; positions change nothing, since only distances count."""
        config, slots = self.config, jnp.arange(tokens.shape[1])
        everywhere = text_mask(real, segments)
        near = neighbour_mask(slots, config.reach)
        views = {
            False: (everywhere, turn(slots, config.head_dim, config.rotary)),
            True: (
                near if everywhere is None else near & everywhere,
                turn(slots, config.head_dim, config.local_rotary),
            ),
        }
        x = self.embedding_norm(self.embedding(tokens, config.dtype))
        for block in self.blocks:
            x = block(x, views)
        return self.norm(x)
