"""Assertions for tests of programs that target the device: would they compile there?

Nothing is executed, and the platform ``neuron`` is not needed: JAX may run on any platform, such as
``JAX_PLATFORMS=cpu``, and this machine need not have the cores of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from neuronjax import options
from neuronjax.compiler import find_illegal
from neuronjax.errors import ConfigurationError, TopologyError
from neuronjax.host.client import HostClient
from neuronjax.jaxlib_api import compile_options, tracing
from neuronjax.jaxlib_api.mlir import bytecode, ir
from neuronjax.legalize.policy import policy_of
from neuronjax.legalize.report import Finding
from neuronjax.legalize.rules.rule import Cores, Severity
from neuronjax.machine.machine import Machine
from neuronjax.machine.placement import arrange_cores
from neuronjax.torch import as_jax

SEVERITIES = {severity.label: severity for severity in Severity}

AnyMesh: TypeAlias = "Mesh | AbstractMesh | Mapping[str, int]"


def assert_neuron_compatible(
    fn: Callable[..., object],
    *args: object,
    target: str = options.DEFAULT_TARGET,
    sdk: str | None = None,
    mesh: AnyMesh | None = None,
    in_shardings: object = None,
    severity: str = "error",
) -> None:
    """Fails if the Neuron compiler would refuse ``fn`` called with ``args``.

    Args:
      fn: a function that ``jax.jit`` takes, or one that it returned.
      args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      target: the machine, such as ``trn1.32xlarge``.
      sdk: version of the Neuron SDK, such as ``2.31``; by default the newest one known.
      mesh: the cores to run on: a JAX mesh, or axis sizes such as ``{"data": 2, "model": 4}``,
        which are laid on the machine as ``neuronjax.make_mesh`` does.
      in_shardings: as for ``jax.jit``; PartitionSpecs are over ``mesh``.
      severity: the lowest severity that counts: ``error`` (it does not compile), ``warning`` (it is
        documented to fail at times), or ``note`` (some numbers may differ).

    Raises:
      AssertionError: lists every finding with its code, the line it comes from, and a remedy.
      ConfigurationError, TopologyError: the target, SDK or mesh does not exist.
    """
    findings = incompatibilities(
        fn, *args, target=target, sdk=sdk, mesh=mesh, in_shardings=in_shardings
    )
    least = _severity(severity)
    lines = [f"  {finding}" for finding in findings if finding.rule.severity >= least]
    if lines:
        name = getattr(fn, "__name__", str(fn))
        raise AssertionError(f"{name} would not run on {target}:\n" + "\n".join(lines))


def incompatibilities(
    fn: Callable[..., object],
    *args: object,
    target: str = options.DEFAULT_TARGET,
    sdk: str | None = None,
    mesh: AnyMesh | None = None,
    in_shardings: object = None,
) -> list[Finding]:
    """The findings of every severity for ``assert_neuron_compatible``, in program order."""
    switches = {"target": target} if sdk is None else {"target": target, "sdk": sdk}
    chosen = options.load(None, **switches)
    machine = Machine.create(chosen.target, chosen.lnc)
    with tracing.TRACED_FOR(machine.chip.name):
        lowered = _lower(fn, args, mesh, in_shardings)
    module = lowered.compiler_ir()
    devices = ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
    return find_illegal(
        bytecode(module),
        _compile_options(devices),
        HostClient(devices),
        policy_of(chosen, machine.chip),
        _cores(machine, mesh, devices),
    )


def _severity(name: str) -> Severity:
    if name not in SEVERITIES:
        raise ConfigurationError(f"severity={name!r} is not one of {', '.join(SEVERITIES)}")
    return SEVERITIES[name]


def _lower(fn: Any, args: tuple[Any, ...], mesh: AnyMesh | None, in_shardings: Any) -> Any:
    fn, args, _ = as_jax(fn, args)
    if in_shardings is not None:
        fn = jax.jit(fn, in_shardings=_over(mesh, in_shardings))
    elif not hasattr(fn, "trace"):
        fn = jax.jit(fn)
    return tracing.lower(fn, args)


def _over(mesh: AnyMesh | None, shardings: Any) -> Any:
    """``shardings`` with every PartitionSpec as a sharding over ``mesh``, without its devices."""
    abstract = _abstract(mesh)

    def place(spec: Any) -> Any:
        if not isinstance(spec, PartitionSpec):
            return spec
        if abstract is None:
            raise TopologyError(
                f"in_shardings has the PartitionSpec {spec} but no mesh was given; pass mesh="
            )
        return NamedSharding(abstract, spec)

    return jax.tree.map(place, shardings, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def _abstract(mesh: AnyMesh | None) -> AbstractMesh | None:
    if isinstance(mesh, Mesh):
        return mesh.abstract_mesh
    if isinstance(mesh, Mapping):
        return AbstractMesh(tuple(mesh.values()), tuple(mesh))
    return mesh


def _compile_options(devices: int) -> Any:
    options = compile_options.new()
    build = options.executable_build_options
    build.num_partitions = devices
    build.use_shardy_partitioner = jax.config.jax_use_shardy_partitioner
    return options


def _cores(machine: Machine, mesh: AnyMesh | None, devices: int) -> Cores:
    """The cores of the partitions: placed for a mesh, or else the first ones.

    Raises:
      TopologyError: the machine has too few.
    """
    axes: Mapping[str, int] = {"cores": devices}
    if mesh is not None:
        axes = mesh if isinstance(mesh, Mapping) else dict(mesh.shape)
    return Cores(machine, tuple(int(core) for core in arrange_cores(machine, axes).reshape(-1)))
