"""Attention masks: True where a query may look at a key.

Positions here are slots: places in the (padded) text or in the cache.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Chunks:
    """A position sees those of its own chunk alone; texts are cut every `size` positions."""

    size: int

    def segments(self, places: jax.Array, segments: jax.Array | None, length: int) -> jax.Array:
        """Numbers of chunks [1 or B, T] of tokens at these places [T] or [B, T], which are below
        `length`; of several texts in a row, with segments [B, T], each has chunks of its own."""
        chunks = jnp.atleast_2d(places // self.size)
        return chunks if segments is None else segments * (-(-length // self.size)) + chunks

    def first(self, places: jax.Array) -> jax.Array:
        """The first position that each of these places sees."""
        return places // self.size * self.size

    def mask(self, query_places: jax.Array, key_places: jax.Array) -> jax.Array:
        """True where both are in one chunk: places [..., T] and [..., S] -> [..., T, S]."""
        keys = (key_places // self.size)[..., None, :]
        return (query_places // self.size)[..., None] == keys


Reach = int | Chunks | None
"""How far before it a query sees: a window of so many positions, itself included; its chunk; or
the whole text."""


def first_seen(reach: Reach, places: jax.Array) -> jax.Array:
    """The first position that each of these places sees."""
    if reach is None:
        return jnp.zeros_like(places)
    if isinstance(reach, Chunks):
        return reach.first(places)
    return jnp.maximum(places - (reach - 1), 0)


def most_seen(reach: int | Chunks, length: int) -> int:
    """How many positions in a row `length` tokens see at most, themselves included."""
    return (reach.size if isinstance(reach, Chunks) else reach) - 1 + length


class Visibility(NamedTuple):
    """What a position of a text sees of it: itself, and what is before it."""

    window: int | None = None  # that many positions at most, itself included
    segments: jax.Array | None = None  # [B or 1, T]: only those with its own number

    def mask(self, length: int) -> jax.Array:
        """[T, T], or [B, T, T] with segments."""
        slots = jnp.arange(length)
        return causal_mask(slots, slots, window=self.window, segments=self.segments)


def causal_mask(
    query_slots: jax.Array,
    key_slots: jax.Array,
    *,
    window: Reach = None,
    pad: jax.Array | None = None,
    segments: jax.Array | None = None,
) -> jax.Array:
    """mask[t, s] = key_slots[s] <= query_slots[t], and within the reach of `window`.

    query_slots [T], key_slots [S] -> [T, S]; with slots of each row [B, T] and [S] or [B, S], with
    pad [B], the number of unused slots at the beginning of each row, or with segments [B, T], where
    T = S, [B, T, S].
    """
    mask = key_slots[..., None, :] <= query_slots[..., None]
    if isinstance(window, Chunks):
        before = 0 if pad is None else pad[:, None]
        mask = mask & window.mask(query_slots - before, key_slots - before)
    elif window is not None:
        mask &= key_slots[..., None, :] > query_slots[..., None] - window
    if pad is not None:
        mask = mask & (key_slots >= pad[:, None])[:, None, :]
    return mask if segments is None else mask & segment_mask(segments)


def segment_mask(segments: jax.Array) -> jax.Array:
    """The mask by which texts in one row see themselves alone: segments [B, T] -> [B, T, T]."""
    return segments[:, :, None] == segments[:, None, :]


def padding_mask(real: jax.Array) -> jax.Array:
    """Every query may look at the real keys: real [B, S] -> [B, 1, S]."""
    return real.astype(bool)[:, None, :]


def text_mask(real: jax.Array | None, segments: jax.Array | None) -> jax.Array | None:
    """What every query of a bidirectional encoder may look at: the real keys [B, T] of its own
    text, if segments [B, T] say which that is. None = all."""
    if segments is None:
        return None if real is None else padding_mask(real)
    own = segment_mask(segments)
    return own if real is None else own & padding_mask(real)


def neighbour_mask(slots: jax.Array, reach: int) -> jax.Array:
    """mask[t, s]: the keys at most `reach` slots before or after the query; slots [T] -> [T, T]."""
    return jnp.abs(slots[None, :] - slots[:, None]) <= reach
