"""From a test's program to what is found in it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax.sharding import Mesh, PartitionSpec

from neuronjax.compiler import find_illegal
from neuronjax.hlo import module as hlo
from neuronjax.host.client import HostClient
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import Finding, findings
from neuronjax.legalize.rules.rule import Cores
from tests.legalize.programs import Case


def bytecode(case: Case) -> bytes:
    if isinstance(case.program, str):
        return case.program.encode()
    with jax.enable_x64(case.x64):
        lowered = jax.jit(case.program).trace(*case.args).lower(lowering_platforms=("neuron",))
        return mlir.module_to_bytecode(lowered.compiler_ir())


def mapped(case: Case, devices: list[jax.Device]) -> Any:
    """The program of a case on eight cores."""
    mesh = Mesh(np.array(devices), ("core",))
    spec = PartitionSpec("core") if case.args[0].ndim == 1 else PartitionSpec()
    return jax.jit(
        jax.shard_map(case.program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )


def partitioned(
    lowered: Any, devices: int, policy: Policy, cores: Cores | None = None
) -> list[Finding]:
    """What is found in the program of one core, after the partitioner."""
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_partitions, build.use_shardy_partitioner = devices, True
    code = mlir.module_to_bytecode(lowered.compiler_ir())
    return find_illegal(code, options, HostClient(devices), policy, cores)


def found_per_core(case: Case, devices: list[jax.Device], cores: Cores | None) -> list[Finding]:
    lowered = mapped(case, devices).trace(*case.args).lower()
    return partitioned(lowered, len(devices), case.policy, cores)


def found_in(code: bytes, policy: Policy) -> list[Finding]:
    with hlo.context():
        return findings(hlo.load(code), policy)
