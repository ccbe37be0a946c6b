"""Cross entropy over a large vocabulary, without probabilities in memory.

Axis names: N rows, V words of the vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part, tiles_of
from models.kernels.tiles import ROWS, Ring, extent, in_stages, loaded, parts, tile

BLOCK = 4096
"""Logits of a row that are in SBUF at a time."""
_AHEAD = 2
"""Blocks that are loaded before they are used."""
_TOGETHER = 32
"""Rows whose elements are counted together: their numbers are exact in FP32, which engines compute
in, for up to 2¹⁹ words."""


@nki.jit
def cross_entropy_kernel(logits: Any, targets: Any) -> tuple[Any, Any]:
    """log(Σ exp(logits)) - logits[target] of each row, and the logarithm, which the gradient needs.

    logits [N, V], int32 targets [N, 1] from 0 to V - 1 -> FP32 [N, 1] twice. The largest logit so
    far and the sum are kept from block to block; a block with a larger one scales the sum down
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    rows, words = logits.shape
    losses, logarithms = (
        nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm) for _ in range(2)
    )
    own_rows = own_part(rows, ROWS)
    sums = [_Sum(logits, targets, row) for row in parts(own_rows.stop, first=own_rows.start)]
    blocks = [(total, columns) for total in sums for columns in parts(words, BLOCK)]
    waiting: list[Any] = []

    def load(block: tuple[_Sum, slice]) -> None:
        waiting.append(loaded(logits[block[0].row, block[1]]))

    def finish(block: tuple[_Sum, slice]) -> None:
        total, columns = block
        if columns.stop == words:
            total.finish(losses, logarithms)

    in_stages(
        blocks,
        (0, load),
        (_AHEAD, lambda block: block[0].begin(waiting.pop(0))),
        (_AHEAD + 1, lambda block: block[0].add()),
        (_AHEAD + 2, finish),
    )
    return losses, logarithms


class _Sum:
    """Σ exp(logits) of the rows of a tile, from block to block."""

    def __init__(self, logits: Any, targets: Any, row: slice) -> None:
        self.row = row
        self._own = _of_targets(logits, targets, row)
        self._lowest, self._total = (self._column() for _ in range(2))
        nisa.memset(self._lowest, 1e30)  # minus the largest logit so far
        nisa.memset(self._total, 0.0)
        self._parts: list[tuple[Any, Any]] = []

    def _column(self) -> Any:
        return tile((extent(self.row), 1))

    def begin(self, data: Any) -> None:
        """Sums exp(data - the largest so far), data [P, S]."""
        lowest, shrunk, sums = (self._column() for _ in range(3))
        nisa.tensor_reduce(lowest, nl.maximum, data, axis=1, negate=True)
        nisa.tensor_tensor(lowest, lowest, self._lowest, nl.minimum)
        nisa.activation(shrunk, nl.exp, self._lowest, bias=lowest, scale=-1.0)
        nisa.activation_reduce(tile(data.shape), nl.exp, data, nl.add, sums, bias=lowest)
        self._lowest = lowest
        self._parts.append((shrunk, sums))

    def add(self) -> None:
        """Adds the oldest sum that was begun to the total."""
        shrunk, sums = self._parts.pop(0)
        nisa.scalar_tensor_tensor(self._total, self._total, nl.multiply, shrunk, nl.add, sums)

    def finish(self, losses: Any, logarithms: Any) -> None:
        """Stores the results of the rows."""
        logarithm, loss = self._column(), self._column()
        nisa.activation(logarithm, nl.log, self._total)
        nisa.tensor_tensor(logarithm, logarithm, self._lowest, nl.subtract)
        nisa.tensor_tensor(loss, logarithm, self._own, nl.subtract)
        nisa.dma_copy(dst=losses[self.row], src=loss)
        nisa.dma_copy(dst=logarithms[self.row], src=logarithm)


def _of_targets(x: Any, targets: Any, row: slice) -> Any:
    """The target's element of each row of x [N, V], as FP32 [P, 1]."""
    own = tile((extent(row), 1), x.dtype)
    for part in parts(row.stop, _TOGETHER, row.start):
        here = slice(part.start - row.start, part.stop - row.start)
        nisa.dma_copy(dst=own[here], src=_elements(x, targets, part))
    result = tile(own.shape)
    nisa.tensor_copy(result, own)
    return result


def _elements(x: Any, targets: Any, part: slice) -> Any:
    """The places of these elements in some rows of x, for a transfer from or to them."""
    count, words = extent(part), x.shape[1]
    places = tile((count, 1), nl.int32)
    nisa.iota(places, [[0, 1]], channel_multiplier=words)
    nisa.tensor_tensor(places, places, loaded(targets[part]), nl.add)
    elements = x[part].reshape((count * words, 1))
    return elements.ap([[1, count], [1, 1]], vector_offset=places)


@nki.jit
def cross_entropy_gradient(logits: Any, targets: Any, logarithms: Any, gradients: Any) -> Any:
    """gradient · (softmax(logits) - one-hot(target)), of the dtype of the logits [N, V].

    int32 targets [N, 1], FP32 [N, 1] logarithms of the sums and gradients of the losses. The
    elements of the targets are stored anew once all of them are.
    """
    rows, words = logits.shape
    result = nl.ndarray(logits.shape, dtype=logits.dtype, buffer=nl.shared_hbm)
    own_rows = own_part(rows, ROWS)
    rows_of_tiles = parts(own_rows.stop, first=own_rows.start)
    scales = [_Scale(logarithms[row], gradients[row]) for row in rows_of_tiles]
    blocks = [
        (row, columns, scale)
        for row, scale in zip(rows_of_tiles, scales, strict=True)
        for columns in parts(words, BLOCK)
    ]
    stored = Ring(_AHEAD + 1, (ROWS, min(BLOCK, words)), logits.dtype)
    waiting: list[Any] = []

    def load(block: tuple[slice, slice, _Scale]) -> None:
        waiting.append(loaded(logits[block[0], block[1]]))

    def store(block: tuple[slice, slice, _Scale]) -> None:
        row, columns, scale = block
        part = stored.take()[: extent(row), : extent(columns)]
        scale.apply(waiting.pop(0), part)
        nisa.dma_copy(dst=result[row, columns], src=part)

    in_stages(blocks, (0, load), (_AHEAD, store))
    for row, scale in zip(rows_of_tiles, scales, strict=True):
        own = tile((extent(row), 1), logits.dtype)
        scale.apply(_of_targets(logits, targets, row), own, less=1.0)
        for part in parts(row.stop, _TOGETHER, row.start):
            here = slice(part.start - row.start, part.stop - row.start)
            nisa.dma_copy(dst=_elements(result, targets, part), src=own[here])
    return result


class _Scale:
    """The gradients of some rows of logits, by logarithms and gradients in HBM [P, 1]."""

    def __init__(self, logarithms: Any, gradients: Any) -> None:
        self._shift, self._factor = loaded(logarithms), loaded(gradients)
        nisa.tensor_scalar(self._shift, self._shift, nl.multiply, -1.0)

    def apply(self, data: Any, result: Any, less: float = 0.0) -> None:
        """result = factor · (exp(data + shift) - less)."""
        weights = tile(data.shape)
        nisa.activation(weights, nl.exp, data, bias=self._shift)
        nisa.tensor_scalar(
            result, weights, nl.subtract, less, op1=nl.multiply, operand1=self._factor
        )


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target]: logits [..., V], integers [...] -> FP32 [...]. A target that is
    no word counts as the nearest one; what it gives must not be used."""
    return _forward(logits, targets)[0]


Saved = tuple[jax.Array, jax.Array, jax.Array]


def _forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, Saved]:
    rows = _rows(logits, targets)
    losses, logarithms = on_cores(cross_entropy_kernel, tiles_of(targets.size))(*rows)
    return losses.reshape(targets.shape), (logits, targets, logarithms)


def _backward(saved: Saved, gradient: jax.Array) -> tuple[jax.Array, None]:
    logits, targets, logarithms = saved
    rows = _rows(logits, targets)
    kernel = on_cores(cross_entropy_gradient, tiles_of(targets.size))
    result = kernel(*rows, logarithms, gradient.reshape(-1, 1))
    return result.reshape(logits.shape), None


cross_entropy.defvjp(_forward, _backward)


def _rows(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    words = logits.shape[-1]
    places = jnp.clip(targets, 0, words - 1)  # those of padding may be anything
    return logits.reshape(-1, words), places.reshape(-1, 1).astype(jnp.int32)
