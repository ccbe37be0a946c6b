"""Whether a core's memory holds a step, asked before anything is allocated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from launch.errors import MeshError
from launch.training.step import Training

GIB, MIB = 1 << 30, 1 << 20

_REMEDIES: Mapping[str, str] = {
    "weights": "--tensor_parallel_size, --pipeline_parallel_size or --fully_sharded_size split "
    "them, --zero_1 does between steps",
    "optimizer state": "--zero_1 splits it over data-parallel cores",
    "batch": "a smaller --batch_size",
    "activations and gradients": "--recompute=full, smaller micro-batches by "
    "--gradient_accumulation_steps, or --context_parallel_size",
}
"""What lies in memory during a step -> which flags make it less."""


@dataclass(frozen=True)
class CoreMemory:
    """Bytes of a core's memory: what a step needs, by the names of `_REMEDIES`, and how many there
    are."""

    needed: Mapping[str, int]
    limit: int

    @property
    def fits(self) -> bool:
        """Whether there are as many as a step needs."""
        return sum(self.needed.values()) <= self.limit

    @property
    def largest(self) -> list[str]:
        """The names, from what takes most on."""
        return sorted(self.needed, key=lambda name: -self.needed[name])

    @property
    def parts(self) -> str:
        """What takes how much, as a text."""
        return ", ".join(f"{name} {_text(self.needed[name])}" for name in self.largest)

    def __str__(self) -> str:
        return f"{_text(sum(self.needed.values()))} of {_text(self.limit)}: {self.parts}"


def memory_of(training: Training, compiled: jax.stages.Compiled) -> dict[str, int] | None:
    """Bytes of a core during a step, by the names of `_REMEDIES`; None if the platform does not
    say how much its program needs beside arguments."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    unshared = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return {
        **arguments_of(training),
        "activations and gradients": analysis.temp_size_in_bytes + max(unshared, 0),
    }


def arguments_of(training: Training) -> dict[str, int]:
    """Bytes of a core that the arguments of a step take, by the names of `_REMEDIES`."""
    state, batch = training.arguments
    return {
        "weights": _bytes((state.parameters, state.average)),
        "optimizer state": _bytes((state.optimizer, state.scaling)),
        "batch": _bytes(batch),
    }


def memory_limit(device: jax.Device) -> int | None:
    """Bytes that programs may use of a core's memory; None if the platform does not say."""
    return (device.memory_stats() or {}).get("bytes_limit")


def check_arguments(training: Training, device: jax.Device) -> None:
    """Raises MeshError if weights, optimizer state and batch alone do not fit in a core's memory;
    that is known before compiling, which takes minutes for large models."""
    limit = memory_limit(device)
    if limit is not None:
        _check(CoreMemory(arguments_of(training), limit), device, "at least ")


def check_memory(
    training: Training, compiled: jax.stages.Compiled, device: jax.Device
) -> CoreMemory | None:
    """A core's memory during a step; None if the platform does not say.

    Raises MeshError if a core of the device's kind has less than a step needs.
    """
    limit, needed = memory_limit(device), memory_of(training, compiled)
    if limit is None or needed is None:
        return None
    memory = CoreMemory(needed, limit)
    _check(memory, device)
    return memory


def _check(memory: CoreMemory, device: jax.Device, least: str = "") -> None:
    if memory.fits:
        return
    raise MeshError(
        f"a step needs {least}{_text(sum(memory.needed.values()))} of a core's memory, and "
        f"{device.device_kind} has {_text(memory.limit)}: {memory.parts}. What to change: "
        f"{'; '.join(f'{name}: {_REMEDIES[name]}' for name in memory.largest[:2])}. "
        "--nocheck_memory starts it as it is."
    )


def _text(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / MIB:.2f} MiB"


def _bytes(tree: Any) -> int:
    """The bytes of a core's parts of jax.ShapeDtypeStruct with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
