"""What models share that read texts.

Axis names: B texts, C choices, T tokens, D width of the model.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from models.layers.embedding import Embedding
from models.layers.text_heads import Outputs, TextHead


class TextReader(nnx.Module):
    """Tokens to the outputs of the head; see models/layers/text_heads.py for their names."""

    head: TextHead

    @property
    @abstractmethod
    def words(self) -> Embedding:
        """The vectors of tokens."""

    @abstractmethod
    def encode(self, tokens: jax.Array, *others: Any, **named: Any) -> jax.Array:
        """What the head reads [B, T, D] of tokens [B, T]; the rest is as in `__call__`, and follows
        in that order."""

    def __call__(
        self, tokens: jax.Array, *, real: jax.Array | None = None, **others: jax.Array | None
    ) -> Outputs:
        """The outputs of tokens [B, T], or [B, C, T] if the head compares choices: then logits
        [B, C].

        real, of the same shape, is False at padding; types tells first and second texts apart,
        where a model knows them. Where several texts share a row, a token sees those with its
        number in segments, and stands at its place in positions.
        """
        return outputs_per_text(self._outputs, tokens, real=real, **others)

    def _outputs(
        self, tokens: jax.Array, real: jax.Array | None, **others: jax.Array | None
    ) -> Outputs:
        return self.head(self.encode(tokens, real, **others), real, self.words)


def outputs_per_text(
    outputs_of: Callable[..., Outputs], tokens: jax.Array, **others: jax.Array | None
) -> Outputs:
    """The outputs of tokens [B, T]; for choices [B, C, T], one number per choice [B, C].

    `others` have the shape of the tokens.
    """
    if tokens.ndim == 2:
        return outputs_of(tokens, **others)
    texts = (-1, tokens.shape[-1])
    flat = {name: None if x is None else x.reshape(texts) for name, x in others.items()}
    outputs = outputs_of(tokens.reshape(texts), **flat)
    return {name: value.reshape(tokens.shape[:-1]) for name, value in outputs.items()}
