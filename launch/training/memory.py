"""Whether a core's memory holds a step, asked before anything is allocated."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from launch.errors import MeshError
from launch.training.step import Training

GIB = 1 << 30

_REMEDIES: Mapping[str, str] = {
    "weights": "--tensor_parallel_size, --pipeline_parallel_size or --fully_sharded_size split "
    "them, --zero_1 does between steps",
    "optimizer state": "--zero_1 splits it over data-parallel cores",
    "batch": "a smaller --batch_size",
    "activations and gradients": "--recompute=full, smaller micro-batches by "
    "--gradient_accumulation_steps, or --context_parallel_size",
}
"""What lies in memory during a step -> which flags make it less."""


def memory_of(training: Training, compiled: jax.stages.Compiled) -> dict[str, int] | None:
    """Bytes of a core during a step, by the names of `_REMEDIES`; None if the platform does not
    say how much its program needs beside arguments."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    state, batch = training.arguments
    unshared = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return {
        "weights": _bytes((state.parameters, state.average)),
        "optimizer state": _bytes((state.optimizer, state.scaling)),
        "batch": _bytes(batch),
        "activations and gradients": analysis.temp_size_in_bytes + max(unshared, 0),
    }


def memory_limit(device: jax.Device) -> int | None:
    """Bytes that programs may use of a core's memory; None if the platform does not say."""
    return (device.memory_stats() or {}).get("bytes_limit")


def check_memory(training: Training, compiled: jax.stages.Compiled, device: jax.Device) -> None:
    """Raises MeshError if a core of the device's kind has less memory than a step needs."""
    limit, needed = memory_limit(device), memory_of(training, compiled)
    if limit is None or needed is None or sum(needed.values()) <= limit:
        return
    parts = sorted(needed.items(), key=lambda item: -item[1])
    raise MeshError(
        f"a step needs {sum(needed.values()) / GIB:.2f} GiB of a core's memory, and "
        f"{device.device_kind} has {limit / GIB:.2f} GiB: "
        f"{', '.join(f'{name} {size / GIB:.2f} GiB' for name, size in parts)}. What to change: "
        f"{'; '.join(f'{name}: {_REMEDIES[name]}' for name, _ in parts[:2])}. --nocheck_memory "
        "starts it as it is."
    )


def _bytes(tree: Any) -> int:
    """Of a core's parts of jax.ShapeDtypeStruct with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
