"""What the kernels of attention do with a head: its rows and columns in SBUF, and what is later.

Axis names: T positions, H head_dim.
"""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import ROWS, extent, parts, tile

BLOCK = 512
"""Keys of a block, and columns of a product: the FP32 numbers that a bank of PSUM holds."""


def rows_of_head(x: Any) -> Any:
    """x [T, H] of HBM -> [128, T / 128, H] in SBUF."""
    length, width = x.shape
    rows = tile((ROWS, length // ROWS, width), x.dtype)
    for number, part in enumerate(parts(length)):
        nisa.dma_copy(dst=rows[:, number], src=x[part])
    return rows


def columns_of_head(x: Any) -> Any:
    """x [T, H] of HBM -> xᵀ [H, T] in SBUF."""
    return turned_rows(rows_of_head(x))


def turned_rows(rows: Any) -> Any:
    """[128, T / 128, H] -> [H, T], in SBUF."""
    _, count, width = rows.shape
    columns = tile((width, count * ROWS), rows.dtype)
    for span in parts(count * ROWS, BLOCK):
        products = tile((width, extent(span)), rows.dtype, nl.psum)
        for part in parts(extent(span)):
            number = (span.start + part.start) // ROWS
            nisa.nc_transpose(products[:, part], rows[:, number])
        nisa.tensor_copy(columns[:, span], products)
    return columns


class Later:
    """Excludes keys that are later than the query."""

    def __init__(self, dtype: Any) -> None:
        self._unit, self._lowest = tile((ROWS, ROWS), dtype), tile((ROWS, ROWS), dtype)
        ones, zeros = tile((ROWS, ROWS), dtype), tile((ROWS, ROWS), dtype)
        nisa.memset(ones, 1.0)
        nisa.memset(zeros, 0.0)
        to_the_right = [[-1, ROWS]]  # row - column
        nisa.affine_select(self._unit, to_the_right, 1, ones, 0.0, cmp_op=nl.equal)
        nisa.affine_select(self._lowest, to_the_right, 1, zeros, -1e30, cmp_op=nl.greater_equal)

    def exclude(self, scores: Any) -> None:
        """Begins scores [128, 128] in PSUM, with 0 up to their diagonal and -1e30 behind it: by the
        Tensor engine, which then adds the products."""
        nisa.nc_matmul(scores, self._unit, self._lowest, accumulate=False)


def score(scores: Any, queries: Any, keys: Any, block: slice, rows: slice, later: Later) -> None:
    """query · key of a tile's queries [H, 128], which are `rows` of the text, and a block of keys
    [H, T] that begins at or before them and ends with them at the latest -> [128, S] in PSUM."""
    before = min(rows.start, block.stop) - block.start
    if before:
        earlier = keys[:, nl.ds(block.start, before)]
        nisa.nc_matmul(scores[:, nl.ds(0, before)], queries, earlier, accumulate=False)
    if before < extent(block):
        own = scores[:, nl.ds(before, ROWS)]
        later.exclude(own)
        nisa.nc_matmul(own, queries, keys[:, rows], accumulate=True)
