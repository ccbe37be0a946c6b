"""What a call of a compiled function costs beyond its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from launch.benchmarks.paired import Thunk

TINY_CALLS = 100
ARGUMENTS = 300


def tiny(devices: Sequence[jax.Device]) -> Thunk:
    """`x + 1`, TINY_CALLS times, on four numbers, each waited for, on the first device."""
    x = jax.device_put(jnp.arange(4.0), devices[0])
    add_one = jax.jit(lambda x: x + 1)

    def run() -> None:
        for _ in range(TINY_CALLS):
            add_one(x).block_until_ready()

    return run


def unwaited(devices: Sequence[jax.Device]) -> Thunk:
    """A tiny function called TINY_CALLS times, of which only the last call is waited for."""
    x = jax.device_put(jnp.arange(4.0), devices[0])
    add_one = jax.jit(lambda x: x + 1)

    def run() -> None:
        for _ in range(TINY_CALLS):
            y = add_one(x)
        y.block_until_ready()

    return run


def fetching(devices: Sequence[jax.Device]) -> Thunk:
    """TINY_CALLS of such calls, and each result fetched with `jax.device_get`."""
    x = jax.device_put(jnp.arange(4.0), devices[0])
    add_one = jax.jit(lambda x: x + 1)

    def run() -> None:
        for _ in range(TINY_CALLS):
            jax.device_get(add_one(x))

    return run


def many_arguments(devices: Sequence[jax.Device]) -> Thunk:
    """One call with ARGUMENTS arrays in and as many out, each split over all devices."""
    mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
    split = NamedSharding(mesh, PartitionSpec("x"))
    values = [np.full((len(devices), 4), i, np.float32) for i in range(ARGUMENTS)]
    arrays = jax.device_put(values, split)
    add_one = jax.jit(lambda arrays: [x + 1 for x in arrays])
    return lambda: jax.block_until_ready(add_one(arrays))


PREPARE: dict[str, Callable[[Sequence[jax.Device]], Thunk]] = {
    "tiny": tiny,
    "unwaited": unwaited,
    "fetching": fetching,
    "many_arguments": many_arguments,
}
"""What a process of its own can be asked for."""
