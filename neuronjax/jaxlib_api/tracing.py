"""Facts of a lowered function that JAX has and does not publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import compiler as jax_compiler
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.interpreters import pxla

from neuronjax.jaxlib_api import PLATFORM, compile_options

TRACED_FOR: Any = jax.make_user_context(None)
"""The chip that is asked about, where that need not be the emulated one: ``with TRACED_FOR(chip)``
traces programs whose kernels are compiled for it, and JAX keeps traces for different chips apart.
"""


def trace(jitted: Any, arguments: Sequence[Any]) -> Any:
    """A ``jax.stages.Traced`` of what ``jax.jit`` or Flax's ``nnx.jit`` returned; the stages of the
    latter have JAX's within.

    Relies on ``Traced._consts`` and ``core.escaped_tracer_error``. Without them: compare the number
    of ``jaxpr.in_avals`` with that of the leaves of ``args_info``.

    UnexpectedTracerError: the function closes over a value of another trace, as JAX says when it
    runs such a function.
    """
    traced = jitted.trace(*arguments)
    traced = getattr(traced, "traced", traced)
    for constant in traced._consts:
        if isinstance(constant, jax.core.Tracer):
            raise jax_core.escaped_tracer_error(constant)
    return traced


def lower(jitted: Any, arguments: Sequence[Any]) -> Any:
    """The `trace` of what ``jit`` returned, as `lower_traced` lowers it."""
    return lower_traced(trace(jitted, arguments))


def lower_traced(traced: Any) -> Any:
    """A ``jax.stages.Lowered`` for the platform, which need not be in use.

    JAX knows the platform once it has looked for plugins, as it does for its first device.
    """
    jax.default_backend()
    return traced.lower(lowering_platforms=(PLATFORM,))


@dataclass(frozen=True)
class LoweredFacts:
    """Facts of a ``jax.stages.Lowered``."""

    module: Any
    """The lowered StableHLO module."""
    devices: int
    kept_arguments: frozenset[int]
    """Which of all flat arguments, constants first, the program takes."""
    constants: tuple[Any, ...]
    """Arrays that the function closes over, passed before its arguments."""
    argument_avals: tuple[Any, ...]
    """Abstract values of the arguments that it takes."""
    ordered_effects: bool
    propagate_to_parameters: tuple[bool, ...]
    propagate_to_results: tuple[bool, ...]
    compiler_options: dict[str, Any]


def facts(lowered: Any) -> LoweredFacts:
    """Returns the facts that the lowering of ``lowered`` has.

    Relies on ``Lowered._lowering`` and its ``compile_args``, the keyword arguments of
    ``pxla.UnloadedMeshExecutable.from_hlo``. If they go: ``Lowered.compile`` shows who knows.
    """
    lowering = lowered._lowering
    known = lowering.compile_args
    to_parameters, to_results = pxla.get_prop_to_input_output(
        known["in_shardings"], known["out_shardings"], 0
    )
    return LoweredFacts(
        module=lowering.stablehlo(),
        devices=known["num_devices"],
        kept_arguments=frozenset(known["kept_var_idx"]),
        constants=tuple(lowering.const_args),
        argument_avals=tuple(known["global_in_avals"]),
        ordered_effects=bool(known["ordered_effects"]),
        propagate_to_parameters=tuple(to_parameters),
        propagate_to_results=tuple(to_results),
        compiler_options=dict(lowering._compiler_options_kvs),
    )


def kept_arguments(lowered: Any) -> frozenset[int] | None:
    """``LoweredFacts.kept_arguments``, if the lowering says it."""
    kept = lowered._lowering.compile_args.get("kept_var_idx")
    return None if kept is None else frozenset(kept)


def static_arguments(jitted: Any) -> tuple[int, ...]:
    """Numbers of the static arguments of what ``jax.jit`` returned. Relies on ``_jit_info``."""
    return tuple(getattr(getattr(jitted, "_jit_info", None), "static_argnums", ()))


def compile_options_of(known: LoweredFacts) -> Any:
    """CompileOptions as JAX makes them to compile a lowered function for devices from 0 on.

    Relies on ``compiler.get_compile_options``. Without it: ``compile_options.new``, and XLA's
    defaults instead of JAX's.
    """
    options = jax_compiler.get_compile_options(
        num_replicas=1,
        num_partitions=known.devices,
        device_assignment=np.arange(known.devices).reshape(1, known.devices),
        env_options_overrides=known.compiler_options,
    )
    compile_options.propagate_shardings(
        options, known.propagate_to_parameters, known.propagate_to_results
    )
    return options


def scan_sizes(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Counts the operands of a ``scan`` that are constants of all trips, and those it carries.

    Relies on the equation's parameters ``num_consts`` and ``num_carry``, in whose place jax 0.12
    has the tree of the operands, ``ft_in``. Without them: the body's jaxpr has constants first.
    """
    if "ft_in" in parameters:
        constants, carries, _ = parameters["ft_in"].unpack()
        return len(constants), len(carries)
    return parameters["num_consts"], parameters["num_carry"]


def without_source_lines() -> AbstractContextManager[None]:
    """Operations that are lowered within carry no source lines.

    Relies on the option ``jax_traceback_in_locations_limit`` as a context manager. Without it:
    ``jax.config.update`` around it, under a lock.
    """
    return jax_config.traceback_in_locations_limit(0)


def leave_out_frames(folder: str) -> None:
    """Operations carry no source lines of files in a folder from now on, as of JAX's own.

    JAX keeps ten lines of an operation; a library between it and the user has more than that.
    Relies on ``source_info_util.register_exclusion``, which cannot be undone. Without it: a larger
    ``jax_traceback_in_locations_limit``.
    """
    if not source_info_util.is_user_filename(f"{folder}/x.py"):
        return
    source_info_util.register_exclusion(folder)


def varying_as(arguments: Sequence[Any], results: Any) -> Any:
    """A tree of traced ``results`` that differ between the shards of ``shard_map`` wherever an
    argument does, as JAX does not assume of callbacks.

    Relies on ``mat`` of abstract values. Without it: see how ``jax.typeof`` of a value within
    ``shard_map`` names the axes.
    """
    axes = frozenset[Any]().union(*(jax.typeof(value).mat.varying for value in arguments))
    if not axes:
        return results
    names = tuple(sorted(axes, key=str))
    return jax.tree.map(lambda value: jax.lax.pcast(value, names, to="varying"), results)
