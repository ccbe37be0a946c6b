"""The program of one core, compiled, lowered and timed: numbers that are read off, and that add."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from neuronjax import options
from neuronjax.compiler import CompiledProgram, compile_program
from neuronjax.engine_compiler import Arranged, arrange_program
from neuronjax.faults import Fault
from neuronjax.hlo.module import TOKEN, TensorSpec
from neuronjax.host.client import HostClient
from neuronjax.legalize.policy import policy_of
from neuronjax.legalize.report import Collector, Finding
from neuronjax.lower.memory.account import MemoryUse, account
from neuronjax.lower.passes import Known
from neuronjax.lower.schedule.worthwhile import choose_kinds
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.machine.axes import axes_of
from neuronjax.machine.machine import Machine
from neuronjax.planning.argument_kinds import ARGUMENTS, Argument
from neuronjax.planning.flops import model_flops
from neuronjax.planning.tracing import Traced
from neuronjax.planning.traffic import CORES, JOINT
from neuronjax.process_settings import seldom_collected
from neuronjax.profiling.arrays import interface
from neuronjax.profiling.places import plain
from neuronjax.profiling.splits import idle_axes
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program, Target
from neuronjax.timing.calibration import CALIBRATION, Calibration
from neuronjax.timing.encoding import Assumptions
from neuronjax.timing.platform import Platform
from neuronjax.timing.schedule import schedule
from neuronjax.timing.simulations import Simulations
from neuronjax.timing.timeline import KernelTime, Timeline


@dataclass(frozen=True)
class Place:
    """The origin of kernels: their operations, and the user's line."""

    operations: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A core's program. All numbers of two depths of a model are on a line with the others.

    `numbers` by name: ``total_ns``, ``busy.<resource>`` (ns), ``instructions.<engine>``,
    ``kernels`` (runs of them), ``hardware_flops``, ``model_flops``, ``hbm_traffic``, ``dma``,
    ``network``, ``traffic.<axes>`` and ``memory.<kind>`` (bytes), ``spilled`` (bytes).
    """

    name: str
    ranks: int
    numbers: Mapping[str, float]
    kernels: Mapping[Place, tuple[float, float]] = field(default_factory=dict)
    """Time on the engines in ns, and runs."""
    assumed: tuple[str, ...] = ()
    idle_axes: tuple[str, ...] = ()
    """Axes of the mesh that split no argument or result, and along which nothing is sent."""
    findings: tuple[Finding, ...] = ()
    narrow_rate: float = 1.0
    """How many times as fast as BF16 the Tensor engine takes its arguments in FP8 and FP4, the
    fastest of them; 1 without any."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What programs are measured on."""

    machine: Machine
    faults: tuple[Fault, ...] = ()
    """What makes cores and links of it slow."""
    calibration: Calibration = CALIBRATION
    while_trips: int = 1
    """Trips of loops whose number depends on data."""
    flags: str | None = None
    """Flags of the compiler, as in NEURON_CC_FLAGS; None: those of the environment."""
    mesh: Mapping[str, int] | None = None
    """Sizes of the axes that ranks are counted along, for traffic; None: one axis."""
    tuning: Tuning = DEFAULT
    """The numbers that the compiler is free to choose."""
    with_findings: bool = False
    """Whether what the compiler would say is looked for too."""
    verify_passes: bool = False
    """Whether what every pass leaves is verified."""
    known: Known = field(default_factory=Known, repr=False, compare=False)
    """What the programs measured have in common: models of several depths share layers."""
    simulations: Simulations = field(default_factory=Simulations, repr=False, compare=False)
    """Kernels of the programs that have been simulated."""


@dataclass(frozen=True)
class Partitioned:
    """A traced program, that of each core, and what the compiler would say of it."""

    traced: Traced
    program: CompiledProgram
    findings: tuple[Finding, ...] = ()


def partitioned(traced: Traced, setting: Setting) -> Partitioned:
    """The program of each core, with the chip's numerics.

    CompileError: it cannot be partitioned.
    """
    host = HostClient(traced.ranks)
    given: dict[str, Any] = {} if setting.flags is None else {"cc_flags": setting.flags}
    policy = policy_of(options.load(legality="off", **given), setting.machine.chip)
    collector = Collector() if setting.with_findings else None
    with seldom_collected:
        program = compile_program(traced.code, traced.options, host, policy, reporter=collector)
    return Partitioned(traced, program, () if collector is None else tuple(collector.findings))


def measure(prepared: Partitioned, setting: Setting) -> Measurement:
    """The numbers of a program on a machine.

    What has more ranks than the machine has cores runs on several of them.

    Raises:
      CompileError: it cannot be lowered.
    """
    arranged = arrange(prepared.program, prepared.traced.ranks, setting)
    return _numbers_of(prepared, setting, arranged.complete())


def measure_depths(
    shallow: Future[Partitioned], deep: Future[Partitioned], share: float, setting: Setting
) -> Measurement:
    """The numbers of a model `share` times as far from `shallow` as `deep` is, on their line.

    One program is arranged while the other one is still being partitioned.

    For which kernels another order is looked for is decided for both by what they count in that
    model: were it decided otherwise for a layer of one of them, the difference would count once
    for every layer.

    CompileError: one cannot be lowered.
    """
    both = [
        (prepared, arrange(prepared.program, prepared.traced.ranks, setting))
        for prepared in (future.result() for future in (deep, shallow))
    ]
    deep_shares, shallow_shares = (arranged.count_kernels() for _, arranged in both)
    to_order = choose_kinds(shallow_shares.extrapolated(deep_shares, share), setting.tuning)
    at_deep, at_shallow = (
        _numbers_of(prepared, setting, arranged.complete(to_order)) for prepared, arranged in both
    )
    return between(at_shallow, at_deep, share)


def arrange(program: CompiledProgram, ranks: int, setting: Setting) -> Arranged:
    """The engine program of a compiled one, before its kernels get other orders.

    Raises:
      CompileError: it cannot be lowered.
    """
    machine = setting.machine
    return arrange_program(
        program.per_core,
        Target(machine.chip.name, machine.lnc, machine.chip),
        ranks,
        check_memory=False,
        verify_passes=setting.verify_passes,
        tuning=setting.tuning,
        known=setting.known,
    )


def _numbers_of(prepared: Partitioned, setting: Setting, lowered: Program) -> Measurement:
    traced = prepared.traced
    measurement = measure_lowered(
        lowered, prepared.program, traced.ranks, setting, traced.arguments
    )
    return dataclasses.replace(measurement, findings=prepared.findings)


def measure_lowered(
    lowered: Program,
    program: CompiledProgram,
    ranks: int,
    setting: Setting,
    arguments: tuple[Argument, ...] | None = None,
) -> Measurement:
    """The numbers of a compiled program as a core runs it; None: of its `arguments` only types are
    known."""
    machine = setting.machine
    with seldom_collected:
        timeline = time_of(lowered, setting)
        use = account(lowered)
    call = setting.calibration.host_call_ns[machine.chip.core.version]
    numbers = {
        **of_timeline(timeline, call),
        "model_flops": float(model_flops(program.per_core, setting.while_trips)),
        "spilled": float(use.spilled_bytes),
        **_memory(program, use, arguments),
        **_traffic(timeline, setting.mesh or {CORES: ranks}),
    }
    return Measurement(
        name=program.signature.name,
        ranks=ranks,
        numbers=numbers,
        kernels=_by_place(timeline.kernels),
        assumed=timeline.assumed,
        idle_axes=tuple(_idle_axes(program, setting.mesh or {}, numbers)),
        narrow_rate=_narrow_rate(program, machine),
    )


def _narrow_rate(program: CompiledProgram, machine: Machine) -> float:
    rates = machine.chip.core.tensor.rates
    names = {spec.dtype.name for spec in program.signature.argument_types}
    narrow = tuple(name for name in names if name.startswith(("float8", "float4")))
    own_rates = (rate for name, rate in rates.items() if narrow and name.startswith(narrow))
    return float(max(own_rates, default=1))


def _idle_axes(
    program: CompiledProgram, mesh: Mapping[str, int], numbers: Mapping[str, float]
) -> Iterator[str]:
    ranks = math.prod(mesh.values())
    if ranks == 1 or ranks != program.num_partitions:
        return
    used = {
        axis
        for name, nbytes in numbers.items()
        if nbytes and name.startswith(_TRAFFIC)
        for axis in name.removeprefix(_TRAFFIC).split(JOINT)
    }
    if all(axis in used for axis, size in mesh.items() if size > 1):
        return
    split = interface(program.per_core, program.signature, ranks, ranks).splits
    yield from (axis for axis in idle_axes(split, list(mesh.items())) if axis not in used)


def time_of(program: Program, setting: Setting) -> Timeline:
    """The schedule of a program. Cores that it does not use leave the chip's HBM to the others."""
    machine = setting.machine
    platform = Platform.of(
        program,
        machine,
        busy_cores=min(machine.chip.cores, program.ranks * machine.lnc),
        calibration=setting.calibration,
    )
    return schedule(
        program,
        platform=platform,
        assumptions=Assumptions(unknown_trips=setting.while_trips),
        simulations=setting.simulations,
    )


def of_timeline(timeline: Timeline, call_ns: float) -> dict[str, float]:
    """What a schedule says, and the host's call of it, by the names of `Measurement`."""
    return {
        "total_ns": timeline.total_ns + call_ns,
        "launch_ns": timeline.launch_ns + call_ns,
        "host_call_ns": call_ns,
        **{f"busy.{name}": time for name, time in timeline.busy_ns.items()},
        **{f"instructions.{name}": float(n) for name, n in timeline.hardware_instructions.items()},
        "hardware_flops": float(timeline.flops),
        "hbm_traffic": float(timeline.hbm_bytes),
        "dma": float(timeline.dma_bytes),
        "network": float(timeline.network_bytes),
        "kernels": float(sum(kernel.runs for kernel in timeline.kernels)),
    }


_TRAFFIC = "traffic."


def _traffic(timeline: Timeline, mesh: Mapping[str, int]) -> dict[str, float]:
    by_axes: Counter[str] = Counter()
    for group, nbytes in timeline.traffic.items():
        by_axes[JOINT.join(axes_of(group, mesh))] += nbytes
    return {f"{_TRAFFIC}{axes}": float(nbytes) for axes, nbytes in by_axes.items() if axes}


def _by_place(kernels: tuple[KernelTime, ...]) -> dict[Place, tuple[float, float]]:
    totals: dict[Place, tuple[float, float]] = {}
    for kernel in kernels:
        for part in kernel.parts:
            place = Place(plain(part.operations), _line(part.sources))
            time, runs = totals.get(place, (0.0, 0.0))
            totals[place] = (time + part.added_ns * kernel.runs, runs + kernel.runs)
    return totals


def _line(sources: tuple[str, ...]) -> str:
    """The user's line: the first one that is not of an installed package."""
    own = [source for source in sources if "site-packages" not in PurePath(source).parts]
    return next(iter((*own, *sources)), "")


def _memory(
    program: CompiledProgram, use: MemoryUse, arguments: tuple[Argument, ...] | None
) -> dict[str, float]:
    """HBM by kind; results are those that no donated argument makes room for."""
    signature = program.signature
    taken = [entry for entry in signature.arguments if entry.type.dtype != TOKEN]
    if arguments is None:
        arguments = tuple(Argument("", ARGUMENTS, entry.donated) for entry in taken)
    by_kind: Counter[str] = Counter()
    room: Counter[TensorSpec] = Counter()
    for argument, entry in zip(arguments, taken, strict=True):
        by_kind[argument.kind] += entry.type.nbytes
        room[entry.type] += argument.donated
    for spec in signature.result_types:
        if room[spec]:
            room[spec] -= 1
        else:
            by_kind["results"] += spec.nbytes
    by_kind["constants"] = use.hbm_by_kind[Kind.CONSTANT]
    by_kind["scratch"] = use.hbm_by_kind[Kind.SCRATCH]
    return {f"memory.{kind}": float(nbytes) for kind, nbytes in by_kind.items()}


def between(shallow: Measurement, deep: Measurement, share: float) -> Measurement:
    """The measurement on the line through two, `share` of the way from the one to the other."""

    def at(name: str) -> float:
        first, second = shallow.numbers.get(name, 0.0), deep.numbers.get(name, 0.0)
        return max(0.0, first + share * (second - first))

    def kernel(place: Place) -> tuple[float, float]:
        first = shallow.kernels.get(place, (0.0, 0.0))
        second = deep.kernels.get(place, (0.0, 0.0))
        time, runs = (max(0.0, a + share * (b - a)) for a, b in zip(first, second, strict=True))
        return time, runs

    return dataclasses.replace(
        deep,
        numbers={name: at(name) for name in {**shallow.numbers, **deep.numbers}},
        kernels={place: kernel(place) for place in {**shallow.kernels, **deep.kernels}},
    )
