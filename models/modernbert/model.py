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

from models.layers.attention import Attention
from models.layers.factory import LayerFactory
from models.layers.masks import neighbour_mask, text_mask
from models.layers.mlp import GatedMLP
from models.layers.norms import LayerNorm
from models.layers.rotary import Turn, turn
from models.layers.text_heads import Outputs, TextHead, outputs_per_text
from models.modernbert.config import ModernBertConfig

View = tuple[jax.Array | None, Turn]  # what a layer may look at, and how its heads turn


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the first block's input is normed already."""

    def __init__(self, config: ModernBertConfig, layer: int, *, rngs: nnx.Rngs) -> None:
        stddev = config.initializer_range
        out_stddev = stddev / (2 * config.num_layers) ** 0.5
        self.is_local = layer in config.local_layers
        self.attention_norm = _norm(config) if layer else None
        self.attention = Attention(
            config.dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            out_bias=config.attention_bias,
            stddev=stddev,
            out_stddev=out_stddev,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.mlp_norm = _norm(config)
        self.mlp = GatedMLP(
            config.dim,
            config.hidden_dim,
            act=config.act,
            bias=config.mlp_bias,
            stddev=stddev,
            out_stddev=out_stddev,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array, views: Mapping[bool, View]) -> jax.Array:
        mask, by = views[self.is_local]
        normed = x if self.attention_norm is None else self.attention_norm(x)
        attended, _ = self.attention(normed, mask, turn=by)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(nnx.Module):
    """Tokens to the outputs of the head; see models/layers/text_heads.py for their names."""

    def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory.of(config, rngs)
        self.embedding = make.embedding(config.vocab_size, config.dim, "tokens")
        self.embedding_norm = _norm(config)
        self.blocks = nnx.List([Block(config, i, rngs=rngs) for i in range(config.num_layers)])
        self.norm = _norm(config)
        self.head = TextHead.of(config, rngs, norm_bias=config.norm_bias)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> Outputs:
        """The outputs of tokens [B, T], or [B, C, T] if the head compares choices: then logits
        [B, C]. real, of the same shape, is False at padding.

        Where several texts share a row, a token sees those with its number in segments; positions
        change nothing, since only distances count."""
        return outputs_per_text(self._outputs, tokens, real=real, segments=segments)

    def _outputs(
        self, tokens: jax.Array, real: jax.Array | None, segments: jax.Array | None
    ) -> Outputs:
        return self.head(self.encode(tokens, real, segments), real, self.embedding)

    def encode(
        self,
        tokens: jax.Array,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """The normed output of the last block [B, T, D]; arguments as above, [B, T]."""
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


def _norm(config: ModernBertConfig) -> LayerNorm:
    return LayerNorm(
        config.dim, eps=config.norm_eps, bias=config.norm_bias, param_dtype=config.param_dtype
    )
