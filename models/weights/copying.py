"""Views of files become arrays on devices.

Views keep the order in which the file holds the numbers: the device's client brings the axes into
the array's order while it copies, faster than NumPy would.
"""

import mmap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

Index = tuple[slice, ...]

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_FRESH_PAGES = _PRIVATE | getattr(mmap, "MAP_POPULATE", 0)  # at once is faster than one by one


def make_array(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    sharding: Sharding,
    read: Callable[[Index], np.ndarray],
    *,
    copies: bool,
) -> jax.Array:
    """An array of the numbers that `read` returns for each device's index, complete on return.
    If it `copies` them, it is asked for one device after another, so that one copy is held.

    It must not live on a file's pages, which change with the file, and XLA on the CPU takes over
    what is in order already, whatever it is told. Other devices have memory of their own.
    """
    takes_over = any(device.platform == "cpu" for device in sharding.addressable_devices)

    def values(index: Index) -> np.ndarray:
        view = read(index)
        array = view.astype(dtype, copy=False)  # the axes keep their order in memory
        if takes_over and array is view and view.flags.c_contiguous and view.size:
            return _copy_view(view)
        return array

    if not copies:
        array = jax.make_array_from_callback(shape, sharding, values, dtype)
        return array.block_until_ready()
    shards = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        place = SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        shards.append(jax.device_put(values(index), place).block_until_ready())
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def stacked(views: Sequence[np.ndarray]) -> np.ndarray:
    """The views, all of one shape, along a new first axis, their axes in memory as in the views."""
    order = np.argsort([-stride for stride in views[0].strides], kind="stable")
    back = [0, *(1 + np.argsort(order))]
    stack = np.stack([_bits(view).transpose(order) for view in views])
    return stack.transpose(back).view(views[0].dtype)


def _copy_view(view: np.ndarray) -> np.ndarray:
    """A copy that begins with a page, so that XLA on the CPU needs no other."""
    pages = mmap.mmap(-1, view.nbytes, flags=_FRESH_PAGES)
    copy = np.frombuffer(pages, view.dtype).reshape(view.shape)
    _bits(copy)[...] = _bits(view)
    return copy


def _bits(array: np.ndarray) -> np.ndarray:
    """The array's bits as integers: numbers that NumPy knows are copied faster than its guests."""
    return array.view(f"u{array.dtype.itemsize}")
