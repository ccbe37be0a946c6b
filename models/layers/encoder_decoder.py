"""What encoder-decoders share: a decoder that looks at a source, token by token or at once.

Axis names: B texts, S source positions, T target tokens, K cache slots, D model width,
V vocabulary; of servers R rows, L the longest source, P places of sources.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from models.layers.attention import Attention, CacheType
from models.layers.cache import KVCache
from models.layers.embedding import check_length
from models.layers.masks import causal_mask, padding_mask
from models.layers.paged_cache import PagedCache, Pages, Rows, last_outputs


class Source(NamedTuple):
    """What the decoder looks at: keys and values of the source by decoder block, and which of its
    positions are text [B, 1, S] (None: all)."""

    memories: Sequence[KVCache]
    mask: jax.Array | None = None


class TargetCache(NamedTuple):
    """What generation keeps: the source, and keys and values of the target by decoder block."""

    source: Source
    layers: Sequence[KVCache]


class SourcePlaces(NamedTuple):
    """Sources that stay while their targets grow: keys and values [P, L, K, H] by decoder block,
    and how many positions of each are text, int32 [P]."""

    memories: Sequence[KVCache]
    lengths: jax.Array

    def of(self, places: jax.Array) -> Source:
        """The sources in these places int32 [R]."""
        memories = [KVCache(m.keys[places], m.values[places]) for m in self.memories]
        positions = jnp.arange(self.memories[0].keys.shape[1])
        return Source(memories, padding_mask(positions < self.lengths[places][:, None]))

    def put(self, places: jax.Array, source: Source, lengths: jax.Array) -> "SourcePlaces":
        """The places with the sources of so many tokens, int32 [B], in places int32 [B]."""
        memories = [
            KVCache(
                *(kept.at[places, : new.shape[1]].set(new) for kept, new in zip(*pair, strict=True))
            )
            for pair in zip(self.memories, source.memories, strict=True)
        ]
        return SourcePlaces(memories, self.lengths.at[places].set(lengths))

    def copied(self, begin: jax.Array, end: jax.Array) -> "SourcePlaces":
        """The places with the source of the place `begin` in the place `end`, too."""
        return jax.tree.map(lambda kept: kept.at[end].set(kept[begin]), self)


class TargetPages(NamedTuple):
    """What a server keeps of its texts: pages of the targets by decoder block, and the sources that
    they look at, such as `SourcePlaces`."""

    layers: Sequence[Pages]
    sources: Any


class CacheShape(NamedTuple):
    """The shape of a decoder's keys and values."""

    layers: int
    heads: int
    head_dim: int
    dtype: str
    longest: int | None = None  # text, in tokens; None: the model sets no limit


class Slots(NamedTuple):
    """The positions of target tokens: slots of the cache and places in their texts, [T] or [B, T],
    places below 0 at padding; and what each sees, [T, K] or [B, T, K]."""

    slots: jax.Array
    places: jax.Array
    mask: jax.Array


def look(
    attention: Iterable[Attention | None], encoded: jax.Array, mask: jax.Array | None
) -> Source:
    """The source of an encoder's output [B, S, D], by the attention of each decoder block to it."""
    memories = [block.memory(encoded) for block in attention if block is not None]
    return Source(memories, mask)


def run_blocks(
    blocks: Iterable[Any],
    x: jax.Array,
    source: Source,
    caches: Sequence[CacheType],
    *arguments: Any,
    start: ArrayLike,
) -> tuple[jax.Array, list[CacheType]]:
    """The output of decoder blocks, which get x [B, T, D] and `arguments`, and their caches."""
    extended: list[CacheType] = []
    for block, memory, cache in zip(blocks, source.memories, caches, strict=True):
        x, cache = block(x, *arguments, source=(memory, source.mask), cache=cache, start=start)
        extended.append(cache)
    return x, extended


class EncoderDecoder(ABC):
    """Next-token logits of a target text after a source."""

    config: Any
    decoder: Any  # with blocks

    @property
    def cache_shape(self) -> CacheShape:
        """The shape of what it keeps of a target: of as many heads as keys have, padded or not."""
        shape: CacheShape = self.config.cache_shape
        kernel = self.decoder.blocks[0].attention.key.kernel
        return shape if kernel is None else shape._replace(heads=kernel.shape[1])

    @abstractmethod
    def look_at(self, *args: Any, **inputs: Any) -> Source:
        """What the decoder looks at, made of the encoder's inputs."""

    @abstractmethod
    def decode(
        self,
        tokens: jax.Array,
        source: Source,
        caches: Sequence[CacheType],
        where: Slots,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[CacheType]]:
        """The decoder's output [B, T, D] of tokens [B, T], and the caches."""

    @abstractmethod
    def logits(self, x: jax.Array) -> jax.Array:
        """The logits FP32 [B, T, V] of x [B, T, D]."""

    def init_cache(self, batch: int, length: int, **inputs: jax.Array) -> TargetCache:
        """A cache of `length` slots for the targets of `batch` sources, inputs as of `look_at`."""
        shape = self.cache_shape
        empty = KVCache.empty(batch, length, shape.heads, shape.head_dim, shape.dtype)
        return TargetCache(self.look_at(**inputs), [empty] * shape.layers)

    def init_pages(
        self, blocks: int, block_size: int, dtype: DTypeLike | None = None
    ) -> list[Pages]:
        """Empty pages of targets, one entry per decoder block; in the model's dtype unless told
        otherwise."""
        shape = self.cache_shape
        empty = Pages.empty(blocks, block_size, shape.heads, shape.head_dim, dtype or shape.dtype)
        return [empty] * shape.layers

    def read(self, source: jax.Array, length: jax.Array) -> Source:
        """What the decoder looks at of a source of `length` [1] tokens [S], padded."""
        real = jnp.arange(source.shape[0]) < length[:, None]
        return self.look_at(source=source[None], real=real)

    def init_sources(self, places: int, length: int) -> SourcePlaces:
        """Empty places, as many as asked for, of sources of up to `length` positions."""
        shape = self.cache_shape
        empty = KVCache.empty(places, length, shape.heads, shape.head_dim, shape.dtype)
        return SourcePlaces([empty] * shape.layers, jnp.zeros(places, jnp.int32))

    def extend_pages(
        self, tokens: jax.Array, pages: TargetPages, rows: Rows, *, whole: bool = False
    ) -> tuple[jax.Array, TargetPages]:
        """The output [R, D] after the last new token of every row, tokens [R, T], and the pages
        with the new tokens added; with `whole` the outputs [R, T, D] after every token. Each row
        looks at the source in its place, `rows.places`."""
        assert rows.places is not None
        slots = rows.positions(tokens.shape[1])
        keys = jnp.arange(rows.tables.shape[1] * pages.layers[0].keys.shape[1])
        where = Slots(slots, slots, causal_mask(slots, keys))
        caches = [PagedCache(layer, rows) for layer in pages.layers]
        x, caches = self.decode(tokens, pages.sources.of(rows.places), caches, where, rows.starts)
        pages = pages._replace(layers=[cache.pages for cache in caches])
        return x if whole else last_outputs(x, rows), pages

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] in FP32 of outputs [R, D]."""
        return self.logits(x[:, None])[:, 0]

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
        """Logits of tokens [B, T] in slots start … start + T - 1 of the target, and the extended
        cache, as `Decoder.extend` of models/generate.py gives them."""
        slots = start + jnp.arange(tokens.shape[1])
        mask = causal_mask(slots, jnp.arange(cache.layers[0].keys.shape[1]), pad=pad)
        places = slots if pad is None else slots - pad[:, None]
        where = Slots(slots, places, mask)
        x, layers = self.decode(tokens, cache.source, cache.layers, where, start)
        if last is not None:
            x = jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
        return self.logits(x), TargetCache(cache.source, layers)


class TextToText(EncoderDecoder):
    """Logits of a target text after a source text. `decoder.blocks` look at what `encode` makes of
    the source."""

    decoder: Any

    @abstractmethod
    def encode(self, tokens: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """The encoder's output [B, S, D] of tokens [B, S]; real [B, S] is False at padding."""

    def __call__(
        self, tokens: jax.Array, *, source: jax.Array, real: jax.Array | None = None
    ) -> jax.Array:
        """Logits [B, T, V] after each of tokens [B, T], which begin with the start token.

        source [B, S]; real [B, S] is False at its padding. Raises InputError if a text is too long.
        """
        longest = self.cache_shape.longest
        if longest is not None:
            check_length(tokens.shape[1], longest)
        return self.after(self.look_at(source=source, real=real), tokens)

    def look_at(self, *, source: jax.Array, real: jax.Array | None = None) -> Source:
        """What the decoder looks at of sources [B, S]; real [B, S] is False at padding."""
        mask = None if real is None else padding_mask(real)
        attention = (block.cross_attention for block in self.decoder.blocks)
        return look(attention, self.encode(source, real), mask)
