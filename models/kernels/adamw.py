"""AdamW in one pass: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019."""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.tiles import ROWS, extent, loaded, rows_from, spread, tile

BLOCK = 1024
"""Columns that are in SBUF at a time: few, so that the next ones are loaded meanwhile."""


@nki.jit
def adamw(
    weights: Any,
    gradients: Any,
    means: Any,
    squares: Any,
    scalars: Any,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> tuple[Any, Any, Any]:
    """The new weights and moments of a step.

    All [N, D]; weights and moments are FP32. FP32 scalars [1, 3], which change from step to step:
    the learning rate, 1 / (1 - beta1ᵗ) and 1 / (1 - beta2ᵗ). With m = beta1 · means + (1 - beta1) ·
    gradients and v the same of the squares, the weights move by
    -rate · (m / (1 - beta1ᵗ) / (sqrt(v / (1 - beta2ᵗ)) + eps) + decay · weights).
    """
    results = [nl.ndarray(weights.shape, dtype=nl.float32, buffer=nl.shared_hbm) for _ in range(3)]
    of_step = spread(scalars)
    num_rows, width = weights.shape
    own = own_part(num_rows, ROWS)
    for row in nl.affine_range(own.start, own.stop, ROWS):
        for first in nl.affine_range(0, width, BLOCK):
            rows = rows_from(row, own.stop)
            place = rows, rows_from(first, width, BLOCK)
            _step(
                [x[place] for x in (weights, gradients, means, squares)],
                [x[place] for x in results],
                of_step[: extent(rows)],
                (beta1, beta2, eps, decay),
            )
    return results[0], results[1], results[2]


def _step(
    arguments: list[Any],
    results: list[Any],
    of_step: Any,
    constants: tuple[float, float, float, float],
) -> None:
    """Steps one block [P, S] of every array in HBM; of_step [P, 3] in SBUF."""
    beta1, beta2, eps, decay = constants
    weight, gradient, mean, square = map(loaded, arguments)
    rate, of_mean, of_square = (of_step[:, nl.ds(number, 1)] for number in range(3))
    _average(mean, gradient, beta1)
    product, step = tile(weight.shape), tile(weight.shape)
    nisa.activation(product, nl.square, gradient)
    _average(square, product, beta2)
    nisa.activation(step, nl.sqrt, square, scale=of_square)
    nisa.tensor_scalar(step, step, nl.add, eps)
    nisa.reciprocal(step, step)
    nisa.scalar_tensor_tensor(step, mean, nl.multiply, of_mean, nl.multiply, step)
    nisa.scalar_tensor_tensor(step, weight, nl.multiply, decay, nl.add, step)
    nisa.tensor_scalar(step, step, nl.multiply, rate)
    nisa.tensor_tensor(weight, weight, step, nl.subtract)
    for result, value in zip(results, (weight, mean, square), strict=True):
        nisa.dma_copy(dst=result, src=value)


def _average(moment: Any, value: Any, beta: float) -> None:
    """moment = beta · moment + (1 - beta) · value."""
    part = tile(moment.shape)
    nisa.activation(part, nl.copy, value, scale=1 - beta)
    nisa.scalar_tensor_tensor(moment, moment, nl.multiply, beta, nl.add, part)
