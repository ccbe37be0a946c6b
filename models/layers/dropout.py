"""Dropout whose draws belong to rows of the batch and to places in the model: no mesh, and no way
of running blocks, changes them."""

import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

_BITS = 16
_CHANCES = 1 << _BITS
"""Steps in which the share of what is kept is rounded; kept elements are divided by what it is."""
BLOCKS = "blocks"  # the attribute of a model with its blocks, one after the other


class Dropout(nnx.Module):
    """Zeroes a share `rate` of x [B, T, ...] and divides the rest by 1 - rate, in training.

    Srivastava et al., 2014. The share is a multiple of 2^-16. Nothing is dropped until
    `set_dropout` has given the model its keys. Along mesh `axes`, () at first, each core has a part
    of the third dimension of x.
    """

    keys: jax.Array | None
    axes: tuple[str, ...]

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.axes = ()
        self.keys = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.keys is None or not self.rate:
            return x
        kept = round((1 - self.rate) * _CHANCES)
        half = -(-x.shape[1] // 2)
        words = jax.vmap(lambda key: self._draw(key, (half, *x.shape[2:])))(self.keys)
        # A word decides about two elements: half of the work of drawing.
        decided = [
            jnp.where(bits < kept, part / (kept / _CHANCES), 0)
            for bits, part in (
                (words & (_CHANCES - 1), x[:, :half]),
                ((words >> _BITS)[:, : x.shape[1] - half], x[:, half:]),
            )
        ]
        return jnp.concatenate(decided, axis=1).astype(x.dtype)

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
    """The same for one block, whose keys are those of its stack folded with its number."""
    for number, (_, layer) in enumerate(_layers(block)):
        layer.keys = fold(keys, number)


def fold(keys: jax.Array, number: Any) -> jax.Array:
    """Other keys, typed [B]."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def _items(blocks: Any) -> Iterator[nnx.Module]:
    return iter(blocks)


def _layers(model: nnx.Module) -> list[tuple[tuple[Any, ...], Dropout]]:
    return [
        (path, module) for path, module in nnx.iter_modules(model) if isinstance(module, Dropout)
    ]
