"""Products of rows with weights."""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import extent, loaded, parts, tile, transposed

BLOCK = 512
"""Columns of a product: the FP32 numbers that a bank of PSUM holds."""


def loaded_weights(weights: Any, columns: slice) -> list[Any]:
    """Parts of 128 rows of some columns of weights [D, M], in SBUF. The more columns, the longer
    the runs that DMA moves."""
    return [loaded(weights[part, columns]) for part in parts(weights.shape[0])]


def columns_of(x: Any) -> list[Any]:
    """Parts of 128 rows of xᵀ, of a tile x [P, D]."""
    result = []
    for part in parts(x.shape[1]):
        data = tile((extent(part), x.shape[0]), x.dtype)
        transposed(data, x[:, part])
        result.append(data)
    return result


def add_up(stationary: list[Any], moving: list[Any]) -> Any:
    """Σ stationaryᵀ · moving, in a bank of PSUM."""
    total = tile((stationary[0].shape[1], moving[0].shape[1]), buffer=nl.psum)
    for number, (left, right) in enumerate(zip(stationary, moving, strict=True)):
        nisa.nc_matmul(total, left, right, accumulate=number > 0)
    return total


def columns_of_rows(x: Any, rows: slice) -> list[Any]:
    """Parts of 128 rows of xᵀ in SBUF, for up to 512 rows of x [N, D] in HBM."""
    columns = [tile((extent(part), extent(rows)), x.dtype) for part in parts(x.shape[1])]
    for row in parts(rows.stop, first=rows.start):
        own = slice(row.start - rows.start, row.stop - rows.start)
        for column, new in zip(columns, columns_of(loaded(x[row])), strict=True):
            nisa.tensor_copy(column[:, own], new, engine=nisa.engine.gpsimd)
    return columns
