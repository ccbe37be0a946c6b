"""Turns a program into its profile: schedules it, sums up its work and inspects its kernels."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from neuronjax.machine.machine import Machine
from neuronjax.profiling.arrays import NO_INTERFACE, Interface
from neuronjax.profiling.instructions import Account
from neuronjax.profiling.memory_use import memories
from neuronjax.profiling.places import Placed, placed, plain, users_first
from neuronjax.profiling.records import (
    Collective,
    KernelProfile,
    MachineFacts,
    Part,
    ProgramProfile,
    Span,
)
from neuronjax.profiling.spans import spans, waits
from neuronjax.profiling.work import queues, work_of
from neuronjax.program.collective import GroupCollective, Permute
from neuronjax.program.program import Kernel, Program
from neuronjax.timing.encoding import Assumptions, Compiled, compile_kernel
from neuronjax.timing.platform import Platform
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import KernelRuns, KernelTime

MOST_SPANS = 12_000
"""Most detailed instructions of a program; kernels get a share proportional to their time."""

MOST_SPANS_OF_KERNEL = 2_000
FEWEST_SPANS_OF_KERNEL = 24

ASSUMPTIONS = Assumptions()


def facts(machine: Machine) -> MachineFacts:
    """The peak rates and capacities that percentages refer to."""
    core, lnc = machine.chip.core, machine.lnc
    return MachineFacts(
        target=machine.target,
        chip=machine.chip.name,
        version=core.version,
        lnc=lnc,
        cores=machine.core_count,
        max_flops=lnc * core.tensor.flops("bfloat16"),
        max_hbm_bandwidth=lnc * machine.chip.hbm_bandwidth_per_core,
        max_dma_bandwidth=float(lnc * core.dma.bandwidth),
        dma_engines=lnc * core.dma.engines,
        base_clock_hz=float(core.base_clock_hz),
        hbm_bytes=machine.core_hbm_bytes,
        sbuf_partition_bytes=core.sbuf.usable_partition_bytes,
        psum_partition_bytes=core.psum.usable_partition_bytes,
    )


def platform_of(program: Program, machine: Machine) -> Platform:
    """The platform to time a program on; cores it leaves idle give up their HBM bandwidth."""
    busy = min(machine.chip.cores, program.ranks * machine.lnc)
    return Platform.of(program, machine, busy_cores=busy)


def failed(name: str, fingerprint: str, cores: tuple[int, ...], error: str) -> ProgramProfile:
    """The profile of a program that could not be timed: only its runs are known."""
    return ProgramProfile(
        name=name, fingerprint=fingerprint, ranks=len(cores), cores=cores, error=error
    )


def analyse(
    program: Program,
    machine: Machine,
    *,
    fingerprint: str = "",
    model_flops: float = 0.0,
    interface: Interface = NO_INTERFACE,
    cores: tuple[int, ...] = (),
    platform: Platform | None = None,
) -> ProgramProfile:
    """The profile of an allocated program, whose ranks are on these cores, on a platform (None: the
    machine's, whose other cores are idle).

    UnsupportedProgramError: it cannot be timed. MalformedProgramError: its engines deadlock.
    """
    platform = platform or platform_of(program, machine)
    timed = schedule(program, platform=platform, assumptions=ASSUMPTIONS)
    nodes = dict(placed(program))
    memory = memories(program, [nodes[kernel.path].kernel for kernel in timed.kernels], timed)
    names = interface.names
    whole = sum(kernel.added_ns * kernel.runs for kernel in timed.kernels) or 1.0
    kernels = _Kernels(platform, whole)
    for timed_kernel in timed.kernels:
        kernels.add(timed_kernel, nodes[timed_kernel.path])
    return ProgramProfile(
        name=program.name,
        fingerprint=fingerprint,
        ranks=program.ranks,
        cores=cores,
        mesh=interface.mesh,
        arrays=interface.arrays,
        splits=interface.splits,
        total_ns=timed.total_ns,
        launch_ns=timed.launch_ns,
        busy_ns=dict(timed.busy_ns),
        instruction_counts=dict(timed.hardware_instructions),
        work=dict(kernels.work),
        model_flops=model_flops,
        kernels=tuple(kernels.profiles),
        instructions=kernels.account.rows(),
        collectives=tuple(kernels.collectives),
        hbm_bytes={kind.value: nbytes for kind, nbytes in memory.use.hbm_by_kind.items()},
        held=tuple(
            tensor._replace(name=names.get(tensor.name, tensor.name)) for tensor in memory.tensors
        ),
        levels=memory.levels,
        bounds_ns=dict(roofline(program, platform, assumptions=ASSUMPTIONS).bounds_ns),
        assumed=timed.assumed,
    )


class _Inspection:
    """What a kernel does as a whole."""

    def __init__(self, whole: Compiled, platform: Platform) -> None:
        self.whole = whole
        self.work, self.touched = work_of(whole, platform)


@dataclass
class _Kernels:
    """What the kernels of a program do; each is inspected once, however often it is called."""

    platform: Platform
    whole_ns: float
    profiles: list[KernelProfile] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    work: Counter[str] = field(default_factory=Counter)
    _known: dict[int, _Inspection] = field(default_factory=dict)

    def add(self, timed: KernelTime, place: Placed) -> None:
        """Takes up a kernel, and those that run beside it on other cores."""
        own: Counter[str] = Counter()
        sharing = (place.kernel, *place.others)
        for kernel in sharing:
            inspection = self._inspection(kernel)
            own += inspection.work + queues(inspection.touched, place.kinds)
            self.account.add(
                kernel,
                inspection.whole,
                place.scopes if kernel is place.kernel else kernel.scopes,
                runs=timed.runs,
                cores=len(sharing),
                critical=timed.critical,
            )
        share = timed.added_ns * timed.runs / self.whole_ns
        most = min(MOST_SPANS_OF_KERNEL, max(FEWEST_SPANS_OF_KERNEL, int(MOST_SPANS * share)))
        detail = spans(timed.first_run, self.platform, most)
        self.profiles.append(_kernel(timed, place, detail, own))
        first = self._inspection(place.kernel)
        self.collectives += _collectives(timed, first.whole, len(self.collectives))
        for name, value in own.items():
            self.work[name] += value * timed.runs

    def _inspection(self, kernel: Kernel) -> _Inspection:
        if id(kernel) not in self._known:
            whole = compile_kernel(kernel, self.platform, ASSUMPTIONS)
            self._known[id(kernel)] = _Inspection(whole, self.platform)
        return self._known[id(kernel)]


def _kernel(
    timed: KernelTime, place: Placed, detail: tuple[Span, ...], work: Counter[str]
) -> KernelProfile:
    same = {field.name: getattr(timed, field.name) for field in fields(KernelRuns)}
    own = {
        "operations": plain(timed.operations),
        "sources": users_first(timed.sources),
        "busy_ns": dict(timed.busy_ns),
    }
    return KernelProfile(
        **same | own,
        name=place.name,
        work=dict(work),
        tensor_waits_ns=waits(detail),
        spans=detail,
        parts=tuple(_parts(timed, place.scopes)),
    )


def _parts(timed: KernelTime, scopes: Sequence[str]) -> Iterator[Part]:
    for part, scope in zip(timed.parts, scopes or itertools.repeat(""), strict=False):
        source = next(iter(users_first(part.sources)), "")
        yield Part(source, scope, part.added_ns)


def _collectives(timed: KernelTime, compiled: Compiled, first: int) -> list[Collective]:
    collectives: list[Collective] = []
    rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
    for node, cost, times in rows:
        if isinstance(node, GroupCollective | Permute) and cost.message is not None:
            collectives.append(
                Collective(
                    path=timed.path,
                    operation=node.mnemonic,
                    op_id=first + len(collectives),
                    stream_id=node.stream,
                    dtype=node.srcs[0].element_type.name,
                    input_size=sum(access.nbytes for access in node.srcs),
                    output_size=sum(access.nbytes for access in node.dsts),
                    groups=node.pairs if isinstance(node, Permute) else node.groups,
                    runs=times * timed.runs,
                    start_ns=timed.start_ns,
                    time_ns=cost.message.latency_ns + cost.message.wire_ns,
                    latency_ns=cost.message.latency_ns,
                )
            )
    return collectives
