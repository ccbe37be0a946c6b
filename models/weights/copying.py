"""Views of files into memory of their own, fast also where the axes stand in another order."""

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from math import prod
from typing import Any

import numpy as np

_CORES = os.cpu_count() or 1
_LARGE = 1 << 18  # numbers; less is copied before a thread wakes up
ROWS = 64  # of a block: its lines stay in the cache while it is transposed
_FRESH_PAGES = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


def gathered(
    views: Sequence[np.ndarray], shape: Sequence[int], dtype: np.dtype[Any], pool: Executor
) -> np.ndarray:
    """The views, one after another along the first axis of `shape`, or the only one of that shape.

    A device array must not live on a file's pages: they change with the file.
    """
    out = _memory(shape, dtype)
    places = [out] if out.shape == views[0].shape else list(out)
    pieces = [
        piece
        for place, view in zip(places, views, strict=True)
        for piece in zip(_parts(place), _parts(view), strict=True)
    ]
    for _ in pool.map(lambda piece: _copy(*piece), pieces):
        pass
    return out


def _parts(array: np.ndarray) -> list[np.ndarray]:
    """The array in pieces along its first axis, as many as cores if it is large."""
    count = min(len(array), _CORES) if array.size >= _LARGE else 1
    return np.array_split(array, count) if count > 1 else [array]


def _memory(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that begins with a page: XLA on the CPU uses it as it is, without another copy.

    Pages that are there from the start cost a fraction of what NumPy's allocator does, which asks
    for huge pages: the kernel may have to move others out of their way first.
    """
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, size, flags=_FRESH_PAGES), dtype).reshape(shape)


def _copy(out: np.ndarray, view: np.ndarray) -> None:
    """out[...] = view, for a contiguous `out`.

    Where other axes lie innermost it goes block by block: ROWS lines of the view's memory, which
    become ROWS neighbours in `out`. NumPy alone would miss the cache at every number.
    """
    if out.dtype == view.dtype:  # numbers that NumPy knows are copied faster than its guests
        bits = np.dtype(f"u{out.dtype.itemsize}")
        out, view = out.view(bits), view.view(bits)
    order = np.argsort([-stride for stride in view.strides], kind="stable").tolist()
    outer = order.index(out.ndim - 1) if out.ndim else 0
    if outer >= out.ndim - 1:
        out[...] = view
        return
    out, view = out.transpose(order), view.transpose(order)
    for index in np.ndindex(view.shape[:outer]):
        target, source = out[index], view[index]
        for begin in range(0, len(source), ROWS):
            target[begin : begin + ROWS] = source[begin : begin + ROWS]
