"""Dropout whose draws belong to rows of the batch and to places in the model: no mesh, and no way
of running blocks, changes them."""

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

_BITS = 16
_CHANCES = 1 << _BITS
"""Steps in which the share of what is kept is rounded; kept elements are divided by what it is."""
BLOCKS = "blocks"  # the attribute of a model with its blocks, one after the other


class Positions(Protocol):
    """How the cores of a group share positions."""

    @property
    def size(self) -> int:
        """The number of cores."""

    def own(self, tree: jax.Array, /) -> jax.Array:
        """This core's positions of what every core has whole, [B, T, ...]."""


class Dropout(nnx.Module):
    """Zeroes a share `rate` of x [B, T, ...] and divides the rest by 1 - rate, in training.

    Srivastava et al., 2014. The share is a multiple of 2^-16. Nothing is dropped until
    `set_dropout` has given the model its keys. Along mesh `axes`, () at first, each core has a part
    of the third dimension of x; `positions`, () at first, say how groups of cores share the second.
    """

    keys: jax.Array | None
    axes: tuple[str, ...]
    positions: tuple[Positions, ...]

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.axes, self.positions = (), ()
        self.keys = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(x, (0, 1, *range(2, x.ndim)))

    def drop(self, x: jax.Array, order: Sequence[int]) -> jax.Array:
        """Drops elements of x, whose axes, taken in this order, are [B, T, ...]."""
        if self.keys is None or not self.rate:
            return x
        kept = self._draw_kept(tuple(x.shape[axis] for axis in order))
        kept = kept.transpose(np.argsort(order))
        return jnp.where(kept, x / self._share, 0).astype(x.dtype)

    @property
    def _share(self) -> float:
        """The share of what is kept."""
        return round((1 - self.rate) * _CHANCES) / _CHANCES

    def _draw_kept(self, shape: tuple[int, ...]) -> jax.Array:
        """What of [B, T, ...] is kept."""
        assert self.keys is not None
        length = shape[1] * math.prod(group.size for group in self.positions)
        half = -(-length // 2)
        words = jax.vmap(lambda key: self._draw(key, (half, *shape[2:])))(self.keys)
        # A word decides about two elements: half of the work of drawing.
        bits = [words & (_CHANCES - 1), (words >> _BITS)[:, : length - half]]
        kept = jnp.concatenate([part < round(self._share * _CHANCES) for part in bits], axis=1)
        for group in self.positions:
            kept = group.own(kept)
        return kept

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Words of 32 random bits for a row."""
        if not self.axes:
            return jax.random.bits(key, shape)
        whole = (shape[0], shape[1] * jax.lax.axis_size(self.axes), *shape[2:])
        drawn = jax.random.bits(key, whole)
        begin = jax.lax.axis_index(self.axes) * shape[1]
        return jax.lax.dynamic_slice_in_dim(drawn, begin, shape[1], axis=1)


def set_dropout(model: nnx.Module, keys: jax.Array) -> None:
    """Lets every Dropout of the model draw from keys, typed [B], one for each row.

    What runs a block by itself, with a method `take_keys`, gets those of its stack of blocks.
    """
    for path, module in nnx.iter_modules(model):
        if path and path[-1] == BLOCKS:
            prefix = ".".join(map(str, path))
            own = fold(keys, zlib.crc32(prefix.encode()))
            for number, block in enumerate(_items(module)):
                if hasattr(block, "take_keys"):
                    block.take_keys(own)
                else:
                    set_block_dropout(block, fold(own, number))
    outside = [layer for path, layer in _layers(model) if BLOCKS not in path]
    for number, layer in enumerate(outside):
        layer.keys = fold(keys, number)


def set_block_dropout(block: nnx.Module, keys: jax.Array) -> None:
    """Lets every Dropout of one block draw from keys, those of its stack folded with its number."""
    for number, (_, layer) in enumerate(_layers(block)):
        layer.keys = fold(keys, number)


def share_positions(model: nnx.Module, group: Positions) -> None:
    """Lets every Dropout of the model draw for positions that cores share."""
    for _, layer in _layers(model):
        layer.positions = (*layer.positions, group)


def fold(keys: jax.Array, number: Any) -> jax.Array:
    """The keys, typed [B], folded with a number."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def _items(blocks: Any) -> Iterator[nnx.Module]:
    return iter(blocks)


def _layers(model: nnx.Module) -> list[tuple[tuple[Any, ...], Dropout]]:
    return [
        (path, module) for path, module in nnx.iter_modules(model) if isinstance(module, Dropout)
    ]
