"""Sharded programs on eight emulated cores, rank by rank against JAX's cpu platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client

from neuronjax.compiler import compile_program
from neuronjax.host.client import HostClient
from neuronjax.jaxlib_api import mlir
from neuronjax.legalize.policy import Policy
from neuronjax.program.program import Program
from neuronjax.program.verify import verify
from tests.lower.differential import (
    Tolerance,
    assert_close,
    emulated,
    host_operations,
    lowered,
)

RANKS = 8


def per_core(lowered_function: Any, host: HostClient, policy: Policy | None = None) -> bytes:
    """The program of one of eight cores."""
    module = lowered_function.compiler_ir("stablehlo")
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, RANKS
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    build.allow_spmd_sharding_propagation_to_parameters = [False]
    build.allow_spmd_sharding_propagation_to_output = [True]
    build.device_assignment = xla_client.DeviceAssignment.create(np.arange(RANKS)[None])
    return compile_program(
        mlir.portable_artifact(module), options, host, policy or Policy()
    ).per_core


def shards(arrays: Sequence[jax.Array], order: Sequence[jax.Device]) -> list[list[np.ndarray]]:
    """What each rank has of arrays."""
    held = [{s.device: np.asarray(s.data) for s in each.addressable_shards} for each in arrays]
    return [[each[device] for each in held] for device in order]


def check_sharded(
    function: Callable[..., Any],
    arguments: Sequence[jax.Array],
    order: Sequence[jax.Device],
    host: HostClient,
    tolerance: Tolerance,
    donated: tuple[int, ...] = (),
    allowed: frozenset[str] = frozenset(),
) -> Program:
    """Asserts that every rank gets what its device gets; `allowed` operations may be the host's."""
    jitted = jax.jit(function, keep_unused=True, donate_argnums=donated)
    code = per_core(jitted.lower(*arguments), host)
    given = shards(arguments, order)
    expected = shards(jax.tree.leaves(jitted(*arguments)), order)
    program = lowered(code, RANKS)
    left = set(host_operations(program))
    assert left <= allowed, left
    assert verify(program) == ()
    found = emulated(program, code, given)
    for ours, theirs in zip(found, expected, strict=True):
        for got, want in zip(ours, theirs, strict=True):
            assert_close(got, want, tolerance)
    return program
