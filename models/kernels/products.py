"""Products of rows with weights that fit in SBUF."""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import extent, parts, tile, transposed

BLOCK = 512
"""Columns of a product: the FP32 numbers that a bank of PSUM holds."""


def loaded_weights(weights: Any) -> list[Any]:
    """Parts of 128 rows of weights [D, M], in SBUF."""
    result = []
    for part in parts(weights.shape[0]):
        data = tile((extent(part), weights.shape[1]), weights.dtype)
        nisa.dma_copy(dst=data, src=weights[part])
        result.append(data)
    return result


def columns_of(x: Any) -> list[Any]:
    """Parts of 128 rows of xᵀ, of a tile x [P, D]."""
    result = []
    for part in parts(x.shape[1]):
        data = tile((extent(part), x.shape[0]), x.dtype)
        transposed(data, x[:, part])
        result.append(data)
    return result


def add_up(columns: list[Any], weights: list[Any], block: Any) -> Any:
    """Σ columnsᵀ · weights[:, block], in a bank of PSUM."""
    total = tile((columns[0].shape[1], extent(block)), buffer=nl.psum)
    for number, (column, weight) in enumerate(zip(columns, weights, strict=True)):
        nisa.nc_matmul(total, column, weight[:, block], accumulate=number > 0)
    return total
