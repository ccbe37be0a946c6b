"""What encoder-decoders share: a decoder that looks at a source, token by token or at once.

Axis names: B texts, S source positions, T target tokens, K cache slots, D model width,
V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from models.layers.attention import Attention
from models.layers.cache import KVCache
from models.layers.masks import causal_mask


class Source(NamedTuple):
    """What the decoder looks at: keys and values of the source by decoder block, and which of its
    positions are text [B, 1, S] (None: all)."""

    memories: Sequence[KVCache]
    mask: jax.Array | None = None


class TargetCache(NamedTuple):
    """What generation keeps: the source, and keys and values of the target by decoder block."""

    source: Source
    layers: Sequence[KVCache]


class Slots(NamedTuple):
    """Where target tokens are: slots of the cache, [T]; places in their texts, [T] or [B, T],
    below 0 at padding; and what each sees, [T, K] or [B, T, K]."""

    slots: jax.Array
    places: jax.Array
    mask: jax.Array


def look(
    attention: Iterable[Attention | None], encoded: jax.Array, mask: jax.Array | None
) -> Source:
    """The source of an encoder's output [B, S, D], by the attention of each decoder block to it."""
    memories = [block.memory(encoded) for block in attention if block is not None]
    return Source(memories, mask)


class EncoderDecoder(ABC):
    """Next-token logits of a target text after a source."""

    @abstractmethod
    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[KVCache | None],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[KVCache | None]]:
        """The decoder's output [B, T, D] of tokens [B, T], and the caches."""

    @abstractmethod
    def logits(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> FP32 [B, T, V]."""

    def after(self, source: Source, tokens: jax.Array) -> jax.Array:
        """Logits [B, T, V] after each of whole targets, tokens [B, T]."""
        slots = jnp.arange(tokens.shape[1])
        where = Slots(slots, slots, causal_mask(slots, slots))
        x, _ = self.decode(tokens, source, [None] * len(source.memories), where, 0)
        return self.logits(x)

    def extend(
        self,
        tokens: jax.Array,
        cache: TargetCache,
        start: ArrayLike,
        *,
        pad: jax.Array | None = None,
        last: ArrayLike | None = None,
    ) -> tuple[jax.Array, TargetCache]:
        """As `Decoder.extend` of models/generate.py: logits of tokens [B, T] in slots
        start … start + T - 1 of the target, and the extended cache."""
        slots = start + jnp.arange(tokens.shape[1])
        mask = causal_mask(slots, jnp.arange(cache.layers[0].keys.shape[1]), pad=pad)
        places = slots if pad is None else slots - pad[:, None]
        where = Slots(slots, places, mask)
        x, layers = self.decode(tokens, cache.source, cache.layers, where, start)
        if last is not None:
            x = jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
        written = [layer for layer in layers if layer is not None]
        return self.logits(x), TargetCache(cache.source, written)
