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
from models.kernels.tiles import ROWS, extent, loaded, parts, tile

BLOCK = 4096
"""Logits of a row that are in SBUF at a time."""


@nki.jit
def cross_entropy_kernel(logits: Any, targets: Any) -> tuple[Any, Any]:
    """log(Σ exp(logits)) - logits[target] of each row, and the logarithm, which the gradient needs.

    logits [N, V], int32 targets [N, 1] -> FP32 [N, 1] twice. The largest logit so far and the sum
    are kept from block to block; a block with a larger one scales the sum down (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    rows, words = logits.shape
    losses, logarithms = (
        nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm) for _ in range(2)
    )
    own_rows = own_part(rows, ROWS)
    for row in parts(own_rows.stop, first=own_rows.start):
        target = _as_float(loaded(targets[row]))
        lowest, total, own = (tile((extent(row), 1)) for _ in range(3))
        nisa.memset(lowest, 1e30)  # minus the largest logit so far
        nisa.memset(total, 0.0)
        nisa.memset(own, 0.0)
        for block in parts(words, BLOCK):
            data = loaded(logits[row, block])
            lowest = _add_block(data, lowest, total)
            _add_target(data, target, block.start, own)
        logarithm, loss = tile((extent(row), 1)), tile((extent(row), 1))
        nisa.activation(logarithm, nl.log, total)
        nisa.tensor_tensor(logarithm, logarithm, lowest, nl.subtract)
        nisa.tensor_tensor(loss, logarithm, own, nl.subtract)
        nisa.dma_copy(dst=losses[row], src=loss)
        nisa.dma_copy(dst=logarithms[row], src=logarithm)
    return losses, logarithms


def _as_float(whole: Any) -> Any:
    """Numbers of words are below 2²⁴, which FP32 holds exactly."""
    result = tile(whole.shape)
    nisa.tensor_copy(result, whole)
    return result


def _add_block(data: Any, before: Any, total: Any) -> Any:
    """Adds exp(data - the largest so far) [P, S] to the total [P, 1]; minus the largest so far."""
    lowest, shrunk, weights, sums = (tile((data.shape[0], 1)) for _ in range(4))
    nisa.tensor_reduce(lowest, nl.maximum, data, axis=1, negate=True)
    nisa.tensor_tensor(lowest, lowest, before, nl.minimum)
    nisa.activation(shrunk, nl.exp, before, bias=lowest, scale=-1.0)
    weights = tile(data.shape)
    nisa.activation_reduce(weights, nl.exp, data, nl.add, sums, bias=lowest)
    nisa.scalar_tensor_tensor(total, total, nl.multiply, shrunk, nl.add, sums)
    return lowest


def _add_target(data: Any, target: Any, first: int, own: Any) -> None:
    """Adds the logit of the target [P, 1], if the block, which begins at `first`, has it."""
    chosen, own_here = tile(data.shape), tile((data.shape[0], 1))
    numbers = _numbers(data.shape, first)
    nisa.scalar_tensor_tensor(chosen, numbers, nl.equal, target, nl.multiply, data)
    nisa.tensor_reduce(own_here, nl.add, chosen, axis=1)
    nisa.tensor_tensor(own, own, own_here, nl.add)


def _numbers(shape: tuple[int, ...], first: int) -> Any:
    """first, first + 1, … in every row."""
    numbers = tile(shape)
    nisa.iota(numbers, [[1, shape[1]]], offset=first)
    return numbers


@nki.jit
def cross_entropy_gradient(logits: Any, targets: Any, logarithms: Any, gradients: Any) -> Any:
    """gradient · (softmax(logits) - one-hot(target)), of the dtype of the logits [N, V].

    int32 targets [N, 1], FP32 [N, 1] logarithms of the sums and gradients of the losses.
    """
    rows, words = logits.shape
    result = nl.ndarray(logits.shape, dtype=logits.dtype, buffer=nl.shared_hbm)
    own_rows = own_part(rows, ROWS)
    for row in parts(own_rows.stop, first=own_rows.start):
        target, shift, factor = (loaded(x[row]) for x in (targets, logarithms, gradients))
        target = _as_float(target)
        nisa.tensor_scalar(shift, shift, nl.multiply, -1.0)
        nisa.tensor_scalar(factor, factor, nl.multiply, -1.0)
        for block in parts(words, BLOCK):
            data = loaded(logits[row, block])
            weights, part = tile(data.shape), tile(data.shape, logits.dtype)
            nisa.activation(weights, nl.exp, data, bias=shift)
            numbers = _numbers(data.shape, block.start)
            nisa.scalar_tensor_tensor(weights, numbers, nl.equal, target, nl.subtract, weights)
            nisa.tensor_scalar(part, weights, nl.multiply, factor)
            nisa.dma_copy(dst=result[row, block], src=part)
    return result


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target]: logits [..., V], integers [...] -> FP32 [...]."""
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
    return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1, 1).astype(jnp.int32)
