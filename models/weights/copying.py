"""Views of files become arrays on devices.

Views keep the order in which the file holds the numbers: the device's client brings the axes into
the array's order while it copies, faster than NumPy would.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_FRESH_PAGES = _PRIVATE | getattr(mmap, "MAP_POPULATE", 0)  # at once is faster than one by one


def put(view: np.ndarray, dtype: np.dtype[Any], place: SingleDeviceSharding) -> jax.Array:
    """The view's numbers as an array of `dtype` at that place, complete on return.

    It must not live on a file's pages, which change with the file, and XLA on the CPU takes over
    what is in order already, whatever `device_put` is told.
    """
    array = view.astype(dtype, copy=False)  # the axes keep their order in memory
    if array is view and view.flags.c_contiguous and view.size:
        array = _copied(view)
    return jax.device_put(array, place).block_until_ready()


def stacked(views: Sequence[np.ndarray]) -> np.ndarray:
    """The views, all of one shape, along a new first axis, their axes in memory as in the views."""
    order = np.argsort([-stride for stride in views[0].strides], kind="stable")
    back = [0, *(1 + np.argsort(order))]
    stack = np.stack([_bits(view).transpose(order) for view in views])
    return stack.transpose(back).view(views[0].dtype)


def _copied(view: np.ndarray) -> np.ndarray:
    """A copy that begins with a page, so that XLA on the CPU needs no other."""
    pages = mmap.mmap(-1, view.nbytes, flags=_FRESH_PAGES)
    copy = np.frombuffer(pages, view.dtype).reshape(view.shape)
    _bits(copy)[...] = _bits(view)
    return copy


def _bits(array: np.ndarray) -> np.ndarray:
    """The same as integers: numbers that NumPy knows are copied faster than its guests."""
    return array.view(f"u{array.dtype.itemsize}")
