"""`neuronjax.estimate`: a step's time, memory and price, without a step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from neuronjax import options
from neuronjax.errors import ConfigurationError, TopologyError
from neuronjax.faults import parse_faults
from neuronjax.jaxlib_api.tracing import TRACED_FOR
from neuronjax.legalize.report import Finding
from neuronjax.machine.machine import Machine
from neuronjax.machine.slowness import check_faults, slowed
from neuronjax.planning import what_if
from neuronjax.planning.depth import DEPTHS, at_depth
from neuronjax.planning.measure import (
    Measurement,
    Partitioned,
    Setting,
    measure,
    measure_depths,
    partitioned,
)
from neuronjax.planning.memory import advice, memory_of
from neuronjax.planning.prices import price_for
from neuronjax.planning.record import Estimate, KernelShare, Price, Remark
from neuronjax.planning.splits import mesh_of
from neuronjax.planning.tracing import abstract_mesh, mesh_size, trace
from neuronjax.planning.traffic import CORES, traffic_of
from neuronjax.planning.trust import traits_of
from neuronjax.planning.workload import Factory, Workload, reported
from neuronjax.process_settings import seldom_collected
from neuronjax.torch import as_jax

DEFAULT_TARGET = "trn2.48xlarge"
_MOST_KERNELS = 50

MeshLike: TypeAlias = "Mapping[str, int] | str | Mesh | AbstractMesh | None"
"""Sizes by axis, their text, or a mesh of JAX."""


def estimate(
    fn: Callable[..., object],
    *arguments: object,
    target: str = DEFAULT_TARGET,
    mesh: MeshLike = None,
    in_specs: object = None,
    lnc: int | None = None,
    machine: what_if.Given = None,
    tokens: int | None = None,
    samples: int | None = None,
    kinds: Mapping[str, str] | None = None,
    price: float | Price | None = None,
    while_trips: int = 1,
    faults: str = "",
    flags: str | None = None,
    layers: int | None = None,
    depths: tuple[int, int] = DEPTHS,
) -> Estimate:
    """Estimates what one call of `fn` would take on a machine, without allocating or running it.

    Args:
      fn: a function, jitted if it donates arguments or has shardings of its own; or a
        ``torch.nn.Module``, with tensors as arguments (see `neuronjax.torch`).
      arguments: trees of ``jax.ShapeDtypeStruct``, or of arrays, of which only the types matter;
        with a sharding where they are split.
      target: an instance or UltraServer; a mesh of more cores than it has spans several of them.
      mesh: sizes by axis (``{"data": 4, "model": 8}``, ``"data=4,model=8"``), for `in_specs`;
        default: the mesh over which arguments are split.
      in_specs: a tree of PartitionSpec for each argument, or for parts of its tree.
      lnc: physical cores per logical one; default: the chip's.
      machine: a TOML file, or its contents as text or tables, that changes the target's records
        (see `what_if`).
      tokens, samples: what one call processes over all cores.
      kinds: what arguments are, by name or by the path of a part of them, for memory by kind:
        ``{"params": "weights", "state.kv": "cache"}`` (see `planning.argument_kinds`). Default:
        what types and donation say.
      price: US dollars per instance and hour; default: AWS's, on demand or of a capacity block.
      while_trips: trips of loops whose number depends on data.
      faults: slow cores and links, as ``"slow_core core=3 factor=2"`` (see `neuronjax.faults`).
      flags: of the compiler, as ``"--auto-cast=matmult"``; default: NEURON_CC_FLAGS.
      layers: of a deep model, whose time is extrapolated from two shallow ones. `fn` then builds
        the workload, as for ``neuronjax estimate``: called with ``layers=`` and, if it takes it,
        ``mesh=``, it returns a dict of fn and arguments. Do not pass `arguments` then.
      depths: numbers of layers of the two shallow models.

    Raises:
      UnknownTargetError, LogicalCoreError, TopologyError, ConfigurationError: no such machine.
      CompileError: the program cannot be partitioned or lowered.
    """
    given = abstract_mesh(mesh)
    setting = setting_of(target, lnc, machine, while_trips, faults, flags)
    if layers is not None:
        _check_factory(fn, arguments, in_specs, tokens, samples, kinds)
        factory = Factory(make=fn, name=_name(fn))
        return of_factory(factory, setting, given, price=price, layers=layers, depths=depths)
    converted = as_jax(fn, arguments)
    fn, arguments = converted.fn, converted.arguments
    if in_specs is not None:
        arguments = tuple(
            _place_types(argument, specs, given)
            for argument, specs in zip(arguments, _specs(in_specs, arguments), strict=True)
        )
    workload = Workload(
        fn=fn,
        arguments=arguments,
        tokens=tokens,
        samples=samples,
        kinds={**converted.kinds, **(kinds or {})},
    )
    known = mesh_of(arguments) if mesh is None else given
    return of_workload(workload, setting, known, price=price)


def setting_of(
    target: str,
    lnc: int | None,
    machine: what_if.Given = None,
    while_trips: int = 1,
    faults: str = "",
    flags: str | None = None,
    with_findings: bool = False,
) -> Setting:
    """The machine of a target with what `machine` changes, and what it is asked about.

    UnsupportedProgramError: AWS publishes too little about the chip.
    """
    changed, calibration = what_if.machine_of(target, lnc, machine)
    changed.chip.check_published()
    slow = parse_faults("faults", faults)
    check_faults(changed, slow)
    return Setting(
        machine=changed,
        calibration=calibration,
        while_trips=while_trips,
        faults=slow,
        flags=flags,
        with_findings=with_findings,
        verify_passes=options.load(legality="off").verify_passes,
    )


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _check_factory(
    fn: Callable[..., Any], arguments: tuple[Any, ...], in_specs: Any, *others: object
) -> None:
    """Raises if settings are given that a factory of workloads decides itself."""
    if arguments or in_specs is not None or any(other is not None for other in others):
        raise ConfigurationError(
            f"with layers, {_name(fn)} builds the workload: it returns a dict with fn, arguments"
            " (with their shardings), tokens, samples and kinds. Do not pass these or in_specs to"
            " estimate, or leave out layers."
        )
    if "layers" not in inspect.signature(fn).parameters:
        raise ConfigurationError(
            f"{_name(fn)} has no parameter layers, so it cannot build a shallower model. Pass a"
            " function that takes layers= and returns a dict, as neuronjax estimate --help says."
        )


def of_workload(
    workload: Workload,
    setting: Setting,
    mesh: AbstractMesh | None = None,
    *,
    price: float | Price | None = None,
    factory: Factory | None = None,
) -> Estimate:
    """The estimate of a workload as it is; the factory that made it is named in errors."""
    with ThreadPoolExecutor(1) as pool:
        measurement = _prepare(workload, setting, mesh, pool, factory).measure()
    return _estimate(workload, measurement, setting, mesh, price, None)


def of_factory(
    factory: Factory,
    setting: Setting,
    mesh: AbstractMesh | None = None,
    *,
    price: float | Price | None = None,
    layers: int | None = None,
    depths: tuple[int, int] = DEPTHS,
    **given: Any,
) -> Estimate:
    """The estimate of what a factory makes; of deep models from shallow ones."""

    @functools.cache
    def at(depth: int | None) -> tuple[Workload, int | None]:
        return factory.build(depth, mesh=mesh, **given)

    if not factory.has_layers:
        return of_workload(at(None)[0], setting, mesh, price=price, factory=factory)
    workload, whole = at(depths[0])
    layers = layers or whole
    if layers is None:
        return of_workload(at(None)[0], setting, mesh, price=price, factory=factory)

    with ThreadPoolExecutor(1) as pool:
        measurement, assumed = at_depth(
            layers,
            lambda depth: _prepare(at(depth)[0], setting, mesh, pool, factory),
            _Prepared.measure,
            _Prepared.measure_to,
            depths,
        )
    return _estimate(workload, measurement, setting, mesh, price, assumed)


@dataclass(frozen=True)
class _Prepared:
    """A program that another thread partitions, mostly outside Python, and its machine."""

    program: Future[Partitioned]
    setting: Setting
    model_flops: float | None
    """What the model asks for, over all cores; None: the products of the program."""

    def measure(self) -> Measurement:
        return self._with_flops(measure(self.program.result(), self.setting), self.model_flops)

    def measure_to(self, deeper: _Prepared, share: float) -> Measurement:
        """The measurement `share` times as far from this depth as the deeper one is."""
        measured = measure_depths(self.program, deeper.program, share, self.setting)
        if self.model_flops is None or deeper.model_flops is None:
            return measured
        more = deeper.model_flops - self.model_flops
        return self._with_flops(measured, self.model_flops + share * more)

    @staticmethod
    def _with_flops(measurement: Measurement, model_flops: float | None) -> Measurement:
        """A measurement with the model's own FLOPs, over all cores; None: those counted."""
        if model_flops is None:
            return measurement
        numbers = {**measurement.numbers, "model_flops": model_flops / measurement.ranks}
        return replace(measurement, numbers=numbers)


def _prepare(
    workload: Workload,
    setting: Setting,
    mesh: AbstractMesh | None,
    pool: Executor,
    factory: Factory | None,
) -> _Prepared:
    """Exceptions of a program that a factory made are `reported`; of others they are its own."""
    reporting = reported(factory.name, workload.fn, mesh) if factory else nullcontext()
    with seldom_collected, reporting, TRACED_FOR(setting.machine.chip.name):
        traced = trace(workload)
    if mesh is not None and traced.ranks not in (1, mesh_size(mesh)):
        raise TopologyError(
            f"the program is for {traced.ranks} cores, but the mesh {dict(mesh.shape)} has "
            f"{mesh_size(mesh)}; shard the arguments over that mesh."
        )
    _check_ranks(traced.ranks, setting.machine)
    machine = slowed(setting.machine, setting.faults, range(traced.ranks))
    sizes = None if mesh is None else dict(mesh.shape)
    on_machine = replace(setting, machine=machine, mesh=sizes)
    program = pool.submit(partitioned, traced, on_machine)
    return _Prepared(program, on_machine, workload.model_flops)


def _check_ranks(ranks: int, machine: Machine) -> None:
    """Several machines must be full."""
    cores = machine.core_count
    if ranks > cores and ranks % cores:
        raise TopologyError(
            f"a mesh of {ranks} cores does not fit {machine}: it has {cores}, and a mesh over "
            f"several machines must fill them. Use at most {cores}, or a multiple of {cores}."
        )
    if ranks > cores and not machine.instance.network_bandwidth:
        raise TopologyError(f"a mesh of {ranks} cores does not fit {machine}, which has {cores}.")


def _estimate(
    workload: Workload,
    measurement: Measurement,
    setting: Setting,
    mesh: AbstractMesh | None,
    price: float | Price | None,
    assumed: str | None,
) -> Estimate:
    machine, numbers = setting.machine, measurement.numbers
    memory, runtimes = memory_of(numbers, machine, workload.programs)
    sizes = dict(mesh.shape) if mesh is not None else {CORES: measurement.ranks}
    chip = machine.chip
    return Estimate(
        name=workload.name or measurement.name,
        target=machine.target,
        lnc=machine.lnc,
        ranks=measurement.ranks,
        mesh=sizes,
        instances=max(1, -(-measurement.ranks // machine.core_count)),
        instance_cores=machine.core_count,
        step_ns=numbers["total_ns"],
        traits=traits_of(measurement, setting, is_extrapolated=assumed is not None),
        launch_ns=numbers["launch_ns"],
        host_call_ns=numbers["host_call_ns"],
        busy_ns=_part(numbers, "busy."),
        model_flops=numbers["model_flops"],
        hardware_flops=numbers["hardware_flops"],
        hbm_traffic_bytes=numbers["hbm_traffic"],
        network_bytes=numbers["network"],
        traffic=traffic_of(_part(numbers, "traffic."), sizes, machine),
        max_flops=machine.lnc * chip.core.tensor.flops("bfloat16"),
        max_hbm_bandwidth=machine.lnc * chip.hbm_bandwidth_per_core,
        memory=memory,
        memory_ranges={kind: taken[1:] for kind, taken in runtimes.items()},
        capacity_bytes=machine.core_hbm_bytes,
        spilled_bytes=numbers["spilled"],
        instructions=_part(numbers, "instructions."),
        kernels=_costliest(measurement),
        tokens=workload.tokens,
        samples=workload.samples,
        price=price_for(machine.target, price, {}),
        advice=tuple(advice(memory, machine.core_hbm_bytes)),
        assumed=(*workload.assumed, *measurement.assumed, *([assumed] if assumed else [])),
        idle_axes=measurement.idle_axes,
        remarks=tuple(map(_remark, measurement.findings)),
    )


def _remark(finding: Finding) -> Remark:
    return Remark(
        label=finding.rule.label,
        severity=finding.rule.severity.label,
        problem=finding.problem,
        where=finding.where,
        remedy=finding.rule.remedy,
    )


def _part(numbers: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in numbers.items() if k.startswith(prefix)}


def _costliest(measurement: Measurement) -> tuple[KernelShare, ...]:
    shares = [
        KernelShare(operations=place.operations, source=place.source, time_ns=time, runs=runs)
        for place, (time, runs) in measurement.kernels.items()
        if time
    ]
    return tuple(sorted(shares, key=lambda share: -share.time_ns)[:_MOST_KERNELS])


def _specs(in_specs: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(in_specs, PartitionSpec) or not isinstance(in_specs, tuple | list):
        return (in_specs,) * len(arguments)
    if len(in_specs) != len(arguments):
        raise TopologyError(
            f"in_specs has {len(in_specs)} entries for {len(arguments)} arguments; give one for "
            "each argument."
        )
    return tuple(in_specs)


def _place_types(argument: Any, specs: Any, mesh: AbstractMesh) -> Any:
    """The types of an argument's tree, split as `specs`, a prefix of that tree, says."""

    def leaf(value: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        typed = value if hasattr(value, "dtype") else jax.numpy.asarray(value)
        return jax.ShapeDtypeStruct(typed.shape, typed.dtype, sharding=NamedSharding(mesh, spec))

    def part(spec: PartitionSpec | None, tree: Any) -> Any:
        return jax.tree.map(lambda value: leaf(value, spec or PartitionSpec()), tree)

    return jax.tree.map(
        part, specs, argument, is_leaf=lambda spec: spec is None or isinstance(spec, PartitionSpec)
    )
