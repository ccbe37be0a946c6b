"""HBM of a core by what lies there, and what to change where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.machine.machine import Machine
from neuronjax.planning.argument_kinds import ARGUMENT_KINDS

KINDS = (*ARGUMENT_KINDS, "results", "constants", "scratch", "reserved")
"""In the order of tables. `scratch`: values between kernels, so activations; `reserved`: the
runtime's microcode."""


def memory_of(numbers: Mapping[str, float], machine: Machine) -> dict[str, int]:
    """Bytes of HBM per logical core by kind, those of the runtime included."""
    by_kind = {
        name.removeprefix("memory."): round(value)
        for name, value in numbers.items()
        if name.startswith("memory.")
    }
    by_kind["reserved"] = machine.chip.microcode_bytes * machine.lnc
    return {kind: by_kind[kind] for kind in KINDS if by_kind.get(kind)}


_ADVICE: Mapping[str, str] = {
    "weights": "split the weights over more cores (a larger model axis, or FSDP), or store them in "
    "bfloat16 or FP8",
    "optimizer": "split the optimizer's state over the data axis too (ZeRO-1), or keep its moments "
    "in bfloat16",
    "cache": "shorten the context, lower the batch, or split the cache over more cores",
    "inputs": "lower the batch",
    "state": "split the donated state over more cores",
    "statistics": "split the statistics over more cores",
    "arguments": "split the arguments over more cores; say with kinds= which are weights, for "
    "advice on these",
    "results": "donate arguments that results replace (jit's donate_argnums)",
    "constants": "pass large constants as arguments, which can be sharded",
    "scratch": "recompute activations (jax.checkpoint), lower the batch per core and accumulate "
    "gradients, or split the positions",
}


def advice(memory: Mapping[str, int], capacity: int) -> list[str]:
    """What to change so that a core's memory suffices, what helps most first; empty if it does."""
    used = sum(memory.values())
    if used <= capacity:
        return []
    largest = sorted(memory, key=lambda kind: -memory[kind])[:3]
    return [
        f"{kind} take {memory[kind] / (1 << 30):.2f} GiB: {_ADVICE[kind]}"
        for kind in largest
        if kind in _ADVICE and memory[kind] * 10 > used
    ]
