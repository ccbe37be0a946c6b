"""A program becomes its profile: scheduled, summed up, and its kernels looked at."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from neuronjax.errors import NeuronError
from neuronjax.machine.machine import Machine
from neuronjax.profiling import detail
from neuronjax.profiling.live import Live, live
from neuronjax.profiling.places import Placed, placed, plain, users_first
from neuronjax.profiling.records import (
    Collective,
    KernelProfile,
    MachineFacts,
    Opcode,
    Part,
    ProgramProfile,
)
from neuronjax.profiling.work import queues, work_of
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.program import Kernel, Program
from neuronjax.timing.platform import Platform
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from neuronjax.timing.simulate import Simulated
from neuronjax.timing.streams import Assumptions, Compiled, compile_kernel
from neuronjax.timing.timeline import KernelTime

MOST_SPANS = 12_000
"""Detailed instructions of a program; its kernels share them by their time."""

MOST_SPANS_OF_KERNEL = 2_000
FEWEST_SPANS_OF_KERNEL = 24

ASSUMPTIONS = Assumptions()


def facts(machine: Machine) -> MachineFacts:
    """What percentages of a machine's programs are of."""
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
    """What a program is timed on: cores that it does not use leave their HBM to the others."""
    busy = min(machine.chip.cores, program.ranks * machine.lnc)
    return Platform.of(program, machine, busy_cores=busy)


def failed(name: str, fingerprint: str, ranks: int, error: NeuronError) -> ProgramProfile:
    """A program of which nothing but its runs is known."""
    return ProgramProfile(name=name, fingerprint=fingerprint, ranks=ranks, error=str(error))


def analyse(
    program: Program, machine: Machine, *, fingerprint: str = "", model_flops: float = 0.0
) -> ProgramProfile:
    """The profile of an allocated program.

    UnsupportedProgramError: it cannot be timed. MalformedProgramError: engines wait for ever.
    """
    platform = platform_of(program, machine)
    timed = schedule(program, platform=platform, assumptions=ASSUMPTIONS)
    nodes = dict(placed(program))
    use, memory = live(program, [each.kernel for each in nodes.values()])
    lives = dict(zip(nodes, memory, strict=True))
    looked = _Looks(platform, _times(timed.kernels, nodes))
    kernels: list[KernelProfile] = []
    collectives: list[Collective] = []
    opcodes: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    work: Counter[str] = Counter()
    for each in timed.kernels:
        place = nodes[each.path]
        look = looked(place.kernel)
        own: Counter[str] = Counter()
        for one in (look, *map(looked, place.others)):
            own += one.work + queues(one.touched, place.kinds)
            _add_opcodes(opcodes, times, one.whole, each.runs)
        kernels.append(_kernel(each, place, look, own, lives[each.path]))
        collectives += _collectives(each, look.whole, len(collectives))
        for name, value in own.items():
            work[name] += value * each.runs
    return ProgramProfile(
        name=program.name,
        fingerprint=fingerprint,
        ranks=program.ranks,
        total_ns=timed.total_ns,
        launch_ns=timed.launch_ns,
        busy_ns=dict(timed.busy_ns),
        instruction_counts=dict(timed.hardware_instructions),
        work=dict(work),
        model_flops=model_flops,
        kernels=tuple(kernels),
        opcodes=tuple(
            Opcode(engine=engine, opcode=opcode, count=count, time_ns=times[engine, opcode])
            for (engine, opcode), count in opcodes.most_common()
        ),
        collectives=tuple(collectives),
        hbm_bytes={kind.value: nbytes for kind, nbytes in use.hbm_by_kind.items()},
        bounds_ns=dict(roofline(program, platform, assumptions=ASSUMPTIONS).bounds_ns),
        assumed=timed.assumed,
    )


def _times(timed: Iterable[KernelTime], nodes: Mapping[str, Placed]) -> dict[int, float]:
    """The time of all runs at all places, by the id of a kernel."""
    found: dict[int, float] = {}
    for each in timed:
        kernel = id(nodes[each.path].kernel)
        found[kernel] = found.get(kernel, 0.0) + each.duration_ns * each.runs
    return found


class _Look:
    """A kernel looked at: as a whole, and one physical core's part of it in time."""

    def __init__(
        self, whole: Compiled, platform: Platform, part: Compiled, result: Simulated
    ) -> None:
        self.whole = whole
        self.work, self.touched = work_of(whole, platform)
        self.spans = detail.spans(part, result)
        self.waits = detail.waits(self.spans)


class _Looks:
    """Looks at each kernel once, however often it is called."""

    def __init__(self, platform: Platform, times: Mapping[int, float]) -> None:
        self._platform = platform
        self._times = times
        self._whole = sum(times.values()) or 1.0
        self._known: dict[int, _Look] = {}

    def __call__(self, kernel: Kernel) -> _Look:
        known = self._known.get(id(kernel))
        if known is None:
            whole = compile_kernel(kernel, self._platform, ASSUMPTIONS)
            most = int(MOST_SPANS * self._times.get(id(kernel), 0.0) / self._whole)
            most = min(MOST_SPANS_OF_KERNEL, max(FEWEST_SPANS_OF_KERNEL, most))
            part, result = detail.simulated(kernel, self._platform, ASSUMPTIONS, most)
            known = _Look(whole, self._platform, part, result)
            self._known[id(kernel)] = known
        return known


def _kernel(
    each: KernelTime, place: Placed, look: _Look, work: Counter[str], memory: Live
) -> KernelProfile:
    return KernelProfile(
        path=each.path,
        name=place.name,
        operations=plain(each.operations),
        sources=users_first(each.sources),
        runs=each.runs,
        start_ns=each.start_ns,
        end_ns=each.end_ns,
        duration_ns=each.duration_ns,
        busy_ns=dict(each.busy_ns),
        dma_active_ns=each.dma_active_ns,
        critical=each.critical,
        work=dict(work),
        hbm_scratch_bytes=memory.hbm_scratch_bytes,
        sbuf_bytes=memory.sbuf_bytes,
        psum_bytes=memory.psum_bytes,
        tensor_waits_ns=look.waits,
        spans=look.spans,
        parts=tuple(_parts(each, place.scopes)),
    )


def _parts(each: KernelTime, scopes: Sequence[str]) -> Iterator[Part]:
    for part, scope in zip(each.parts, scopes or itertools.repeat(""), strict=False):
        source = next(iter(users_first(part.sources)), "")
        yield Part(source, scope, part.duration_ns)


def _add_opcodes(
    counts: Counter[tuple[str, str]],
    times: Counter[tuple[str, str]],
    compiled: Compiled,
    runs: int,
) -> None:
    rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
    for each, cost, number in rows:
        transfer, message = cost.transfer, cost.message
        engine = "host" if each.engine is None else each.engine.value
        lane = "dma" if transfer else "collective" if message else engine
        one = cost.issue_ns
        if transfer is not None:
            one = transfer.engine_ns
        elif message is not None:
            one = message.latency_ns + message.wire_ns
        counts[lane, each.mnemonic] += number * runs
        times[lane, each.mnemonic] += round(one * number * runs)


def _collectives(each: KernelTime, compiled: Compiled, first: int) -> list[Collective]:
    found: list[Collective] = []
    rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
    for node, cost, times in rows:
        if isinstance(node, CollectiveInstruction) and cost.message is not None:
            groups = getattr(node, "groups", ())
            found.append(
                Collective(
                    path=each.path,
                    operation=node.mnemonic,
                    op_id=first + len(found),
                    stream_id=node.stream,
                    dtype=node.srcs[0].element_type.name,
                    input_size=sum(access.nbytes for access in node.srcs),
                    output_size=sum(access.nbytes for access in node.dsts),
                    ranks=max(map(len, groups), default=2),
                    replica_group=str([list(group) for group in groups]) if groups else "",
                    runs=times * each.runs,
                    start_ns=each.start_ns,
                    time_ns=cost.message.latency_ns + cost.message.wire_ns,
                )
            )
    return found
