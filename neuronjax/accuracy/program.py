"""Lowers a Python function to the program of its cores, and runs it outside the platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax import options
from neuronjax.compiler import CompiledProgram, NumericsObserver, compile_program
from neuronjax.errors import ArgumentMismatchError, UnsupportedProgramError
from neuronjax.host.client import HostClient, HostExecutable
from neuronjax.jaxlib_api import hlo as xla_hlo
from neuronjax.jaxlib_api import tracing
from neuronjax.jaxlib_api.mlir import bytecode
from neuronjax.legalize.policy import Policy, policy_of
from neuronjax.machine.instances import find_instance
from neuronjax.torch import as_jax


def policy_for(target: str | None, switches: Mapping[str, Any]) -> Policy:
    """The policy of the options and ``switches`` on ``target``, with the chip's numerics.

    Raises:
      ConfigurationError: unknown target or switch, or a value that is not allowed.
    """
    chosen = options.load(**{"numerics": "chip", **switches})
    chip = find_instance(target or chosen.target).chip
    policy = policy_of(chosen, chip)
    return replace(policy, legality="off", fail_on_nan=False, fail_on_out_of_bounds=False)


@dataclass(frozen=True)
class Lowered:
    """A global program and its arguments."""

    code: bytes
    """StableHLO as MLIR bytecode, with shardings."""
    compile_options: Any
    cores: int
    arguments: tuple[np.ndarray, ...]
    labels: tuple[str, ...]
    """Names of arguments in terms of the function's, such as ``args[0]['w']``."""


def lower(
    function: Callable[..., Any], arguments: Sequence[Any], target: str | None = None
) -> Lowered:
    """Traces and lowers ``function(*arguments)`` as ``jax.jit`` does, with kernels for the chip of
    `target`, if one is given; runs nothing.

    Raises:
      ArgumentMismatchError: an argument has no value.
      UnsupportedProgramError: the function has ordered effects.
    """
    function, arguments, _ = as_jax(function, arguments, with_values=True)
    jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
    chip = tracing.TRACED_FOR.value if target is None else find_instance(target).chip.name
    with tracing.TRACED_FOR(chip):
        lowered = tracing.lower(jitted, arguments)
    facts = tracing.facts(lowered)
    if facts.ordered_effects:
        raise UnsupportedProgramError(
            "a function with ordered effects (ordered callbacks or prints) cannot be watched op by "
            "op; remove ordered=True."
        )
    labelled = [(f"constant {i}", value) for i, value in enumerate(facts.constants)]
    static = tracing.static_arguments(jitted)
    for index, argument in enumerate(arguments):
        if index not in static:
            leaves = jax.tree_util.tree_leaves_with_path(argument)
            labelled += [(f"args[{index}]{jax.tree_util.keystr(p)}", leaf) for p, leaf in leaves]
    kept = [pair for index, pair in enumerate(labelled) if index in facts.kept_arguments]
    return Lowered(
        code=bytecode(facts.module),
        compile_options=tracing.compile_options_of(facts),
        cores=facts.devices,
        arguments=tuple(
            _numpy(label, value, aval)
            for (label, value), aval in zip(kept, facts.argument_avals, strict=True)
        ),
        labels=tuple(label for label, _ in kept),
    )


def _numpy(label: str, value: Any, aval: Any) -> np.ndarray:
    if isinstance(value, jax.ShapeDtypeStruct):
        raise ArgumentMismatchError(
            f"{label} is a jax.ShapeDtypeStruct, which has no value; pass an array of "
            f"{value.dtype}{list(value.shape)}."
        )
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value, aval.dtype)


@dataclass(frozen=True)
class Instrumented:
    """A compiled program with watched ops."""

    program: CompiledProgram
    executable: HostExecutable
    host: HostClient
    shards: tuple[tuple[np.ndarray, ...], ...]
    """The shards of every argument, one per core."""

    def run(self) -> None:
        """Runs the program once and waits for its end."""
        placement = self.executable.placement
        specs = self.program.signature.argument_types
        arrays = []
        for spec, shards in zip(specs, self.shards, strict=True):
            parts = [
                self.host.put(shard, self.host.placement((core,)))
                for core, shard in enumerate(shards)
            ]
            is_single = len(parts) == 1
            arrays.append(parts[0] if is_single else self.host.assemble(spec, placement, parts))
        results, token = self.executable.execute(arrays, with_token=True)
        token.block_until_ready()
        for result in results:
            result.block_until_ready()


def instrument(lowered: Lowered, policy: Policy, observer: NumericsObserver) -> Instrumented:
    """Compiles a program that ``observer`` changes before and after the chip's numerics enter it.

    Raises:
      CompileError: see ``compile_program``.
    """
    host = HostClient(lowered.cores)
    program = compile_program(
        lowered.code, lowered.compile_options, host, policy, observer=observer
    )
    program = replace(program, signature=program.signature.without_donation())
    executable = host.compile(
        program.per_core,
        host.placement(range(lowered.cores)),
        program.signature.result_types,
        dict(program.xla_options),
        program.callbacks,
    )
    indices = _parameter_indices(program, lowered)
    shards = tuple(
        tuple(np.ascontiguousarray(value[index]) for index in of_cores)
        for value, of_cores in zip(lowered.arguments, indices, strict=True)
    )
    return Instrumented(program, executable, host, shards)


def _parameter_indices(program: CompiledProgram, lowered: Lowered) -> list[tuple[Any, ...]]:
    """The part of every argument that each core gets."""
    if lowered.cores == 1:
        return [(...,) for _ in lowered.arguments]
    shapes = [value.shape for value in lowered.arguments]
    return xla_hlo.parameter_indices(program.per_core, shapes, lowered.cores)
