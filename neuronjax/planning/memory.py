"""HBM of a core by what lies there, and what to change where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.machine import device_memory
from neuronjax.machine.device_memory import Bytes, Demand, runtime_memory
from neuronjax.machine.machine import Machine
from neuronjax.planning.argument_kinds import ARGUMENT_KINDS

_TENSORS = (*ARGUMENT_KINDS, "results", "constants")
KINDS = (*_TENSORS, "scratch", "reserved", *device_memory.KINDS)
"""Kinds of memory in the order of tables. `scratch`: values between kernels, so activations;
`reserved`: the runtime's microcode; the others: what the runtime takes by rules and reports."""


def memory_of(
    numbers: Mapping[str, float], machine: Machine, programs: int
) -> tuple[dict[str, int], Mapping[str, Bytes]]:
    """Bytes of HBM per logical core by kind, and with their range those that the runtime takes for
    so many programs like this one."""
    by_kind = {
        name.removeprefix("memory."): round(value)
        for name, value in numbers.items()
        if name.startswith("memory.")
    }
    by_kind["reserved"] = machine.chip.microcode_bytes * machine.lnc
    demand = Demand(
        io_bytes=sum(by_kind.get(kind, 0) for kind in _TENSORS),
        scratch_bytes=by_kind.get("scratch", 0),
        spilled_bytes=numbers["spilled"],
        instructions=sum(n for name, n in numbers.items() if name.startswith("instructions.")),
        has_collectives=numbers["network"] > 0,
        programs=programs,
    )
    runtimes = runtime_memory(machine.chip.core, demand)
    by_kind |= {kind: taken.nbytes for kind, taken in runtimes.items()}
    return {kind: by_kind[kind] for kind in KINDS if by_kind.get(kind)}, runtimes


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
    "dma rings": "load fewer programs beside each other (buckets of lengths), use more cores, or "
    "take trn2 or newer, whose engines make most descriptors themselves",
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
