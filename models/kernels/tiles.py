"""What kernels do with tiles of 128 rows, the partitions of SBUF and PSUM."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import nki.isa as nisa
import nki.language as nl

Item = TypeVar("Item")

ROWS = 128
"""Rows of a tile: the partitions of SBUF."""


def tile(shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


class Ring:
    """Tiles that are used in turn, so that what writes the next one does not wait for what reads
    the last."""

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf
    ) -> None:
        self._tiles = [tile(shape, dtype, buffer) for _ in range(count)]
        self._taken = 0

    def take(self) -> Any:
        """The tile that was taken the longest time ago."""
        self._taken += 1
        return self._tiles[self._taken % len(self._tiles)]


def in_stages(items: Sequence[Item], *stages: tuple[int, Callable[[Item], None]]) -> None:
    """Takes every item through the stages (behind, stage), which are sorted by `behind`.

    In each round a stage works on the item that is `behind` items after the first stage's, as in a
    pipeline. Engines execute instructions in the order in which a kernel issues them, so a stage
    does not wait for results that were issued rounds before.
    """
    for number in range(len(items) + max(behind for behind, _ in stages)):
        for behind, stage in stages:
            if 0 <= number - behind < len(items):
                stage(items[number - behind])


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


def parts(total: int, step: int = ROWS, first: int = 0) -> list[slice]:
    """Rows or columns, from the first on, in parts of `step`, of which the last may have fewer."""
    return [rows_from(start, total, step) for start in range(first, total, step)]


def extent(part: slice) -> int:
    """How many rows or columns a part has."""
    return int(part.stop - part.start)


def transposed(result: Any, x: Any) -> None:
    """Writes xᵀ to a tile of SBUF, by the Tensor engine: x [P, F] of SBUF, of HBM if need be."""
    data = loaded(x) if x.buffer in (nl.private_hbm, nl.shared_hbm) else x
    turned = tile(result.shape, x.dtype, nl.psum)
    nisa.nc_transpose(turned, data)
    nisa.tensor_copy(result, turned)
