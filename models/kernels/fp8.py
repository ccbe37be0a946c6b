"""Quantisation to FP8, with a scale for each row."""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import ROWS, extent, loaded, rows_from, tile

LARGEST = 240.0
"""The largest number of FP8 E4M3 as NeuronCores have it."""
SMALLEST = 1e-10
"""The least largest magnitude of a row: zeros have a scale, too."""


@nki.jit
def quantised(x: Any) -> tuple[Any, Any]:
    """x ≈ numbers · scales: x [N, D] -> FP8 E4M3 [N, D] and FP32 [N, 1].

    The largest magnitude of a row becomes the largest number of FP8.
    """
    num_rows = x.shape[0]
    numbers = nl.ndarray(x.shape, dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    scales = nl.ndarray((num_rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for first in nl.affine_range(0, num_rows, ROWS):
        rows = rows_from(first, num_rows)
        data, narrow = loaded(x[rows]), tile((extent(rows), x.shape[1]), nl.float8_e4m3)
        scale, inverse = tile((extent(rows), 1)), tile((extent(rows), 1))
        magnitudes = tile(data.shape)
        nisa.activation(magnitudes, nl.abs, data)
        nisa.tensor_reduce(scale, nl.maximum, magnitudes, axis=1)
        nisa.tensor_scalar(
            scale, scale, nl.maximum, SMALLEST, op1=nl.multiply, operand1=1 / LARGEST
        )
        nisa.reciprocal(inverse, scale)
        nisa.activation(narrow, nl.copy, data, scale=inverse)
        nisa.dma_copy(dst=numbers[rows], src=narrow)
        nisa.dma_copy(dst=scales[rows], src=scale)
    return numbers, scales
