"""What kernels do with tiles of 128 rows, the partitions of SBUF and PSUM."""

from typing import Any

import nki.isa as nisa
import nki.language as nl

ROWS = 128
"""Rows of a tile: the partitions of SBUF."""


def tile(shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def loaded(x: Any) -> Any:
    """A tile of SBUF with the rows x [P, …] of HBM."""
    data = tile(x.shape, x.dtype)
    nisa.dma_copy(dst=data, src=x)
    return data


def spread(row: Any) -> Any:
    """A tile of SBUF with the row of HBM [1, F] in all partitions."""
    width = row.shape[1]
    data = tile((ROWS, width), row.dtype)
    nisa.dma_copy(dst=data, src=row.ap([[0, ROWS], [1, width]]))
    return data


def rows_from(first: int, total: int, step: int = ROWS) -> slice:
    """Up to `step` of the rows from the first on, of so many."""
    return slice(first, min(first + step, total))


def parts(total: int, step: int = ROWS) -> list[slice]:
    """Rows or columns in parts of `step`, of which the last may have fewer."""
    return [rows_from(first, total, step) for first in range(0, total, step)]


def extent(part: slice) -> int:
    """How many rows or columns a part has."""
    return int(part.stop - part.start)


def transposed(result: Any, x: Any) -> None:
    """Writes xᵀ to a tile of SBUF, by the Tensor engine: x [P, F] of SBUF, of HBM if need be."""
    data = loaded(x) if x.buffer in (nl.private_hbm, nl.shared_hbm) else x
    turned = tile(result.shape, x.dtype, nl.psum)
    nisa.nc_transpose(turned, data)
    nisa.tensor_copy(result, turned)


def below_the_diagonal(result: Any, x: Any, otherwise: float) -> None:
    """x [128, 128] up to its diagonal, and `otherwise` behind it."""
    pattern = [[-1, x.shape[1]]]
    nisa.affine_select(result, pattern, 1, x, otherwise, cmp_op=nl.greater_equal)
