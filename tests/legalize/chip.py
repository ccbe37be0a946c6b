"""Running small programs on the runtime with the numerics of a chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir

from neuronjax import options
from neuronjax.runtime.client import Client
from neuronjax.runtime.executable import LoadedProgram
from tests.runtime.conftest import compile_options


def client(**environ: str) -> Client:
    """A machine of eight or more cores; one trn2 chip unless the variables say else."""
    chosen = {"NEURONJAX_LEGALITY": "off"} | environ
    lnc = {} if "NEURONJAX_TARGET" in environ else {"NEURON_LOGICAL_NC_CONFIG": "1"}
    return Client(options.load(lnc | chosen))


def lowered(function: Callable[..., Any], *arguments: Any) -> bytes:
    """A function's StableHLO for these arguments."""
    module = jax.jit(function).trace(*arguments).lower(lowering_platforms=("neuron",))
    return mlir.module_to_bytecode(module.compiler_ir())


def execute(machine: Client, program: LoadedProgram, *arguments: np.ndarray) -> list[np.ndarray]:
    """One run; results as core 0 has them. Every core gets the same arguments."""
    cores = program.placement.ids
    values = []
    for argument in arguments:
        shards = [(machine.put(argument, machine.devices[i], "device"), 0) for i in cores]
        values.append(machine.gather(shards, program.placement))
    results, _ = program.execute(values, frozenset())
    return [np.asarray(result.shard(0)) for result in results]


def run(function: Callable[..., Any], *arguments: Any, **environ: str) -> Any:
    """A function's value on one core; ``environ`` are variables such as NEURON_CC_FLAGS."""
    machine = client(**environ)
    program = machine.compile(lowered(function, *arguments), compile_options())
    results = execute(machine, program, *map(np.asarray, arguments))
    return results[0] if len(results) == 1 else results


def run_text(text: str, *arguments: np.ndarray, cores: int, **environ: str) -> np.ndarray:
    """Core 0's result of StableHLO ``text`` as replicas on several cores."""
    machine = client(**environ)
    program = machine.compile(text.encode(), compile_options(cores))
    return execute(machine, program, *arguments)[0]
