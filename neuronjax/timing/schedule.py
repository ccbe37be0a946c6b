"""A whole program in time: kernels one after the other, as far as they do not overlap.

Within a kernel, see `simulate`. A kernel begins when all before it are over, but those that it
`overlaps`: with the engines, queues and links as these leave them, and with the times at which
their streams are done, for which its instructions wait. Nothing overlaps that the program does not
say. Kernels of a split run beside each other, and end with the last of them.

* Loops repeat their kernels until they begin as they did a few trips before, then jump to their
  end.
* Kernels with equal streams that begin alike are simulated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from neuronjax.errors import MalformedProgramError
from neuronjax.machine.machine import Machine
from neuronjax.program.control import Host
from neuronjax.program.program import (
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Program,
    Split,
    While,
)
from neuronjax.program.walk import children, control_register, kernels, label
from neuronjax.timing.clocks import Clocks, most_overlaps
from neuronjax.timing.control import HOST_NS_PER_COMPARISON
from neuronjax.timing.encoding import (
    PS,
    Assumptions,
    Compiled,
    compile_kernel,
    taken,
)
from neuronjax.timing.platform import Platform
from neuronjax.timing.runs import LANES, NAMES, KernelRuns, Known, Work, kernel_time_of
from neuronjax.timing.simulate import Simulated, simulate
from neuronjax.timing.simulations import Simulations
from neuronjax.timing.timeline import (
    COLLECTIVE,
    DMA,
    Event,
    FirstRun,
    Runs,
    Timeline,
)

_PERIODS = 4
"""Trips of a loop about kernels after which it may begin again alike."""


class _Scheduler:
    """A walk through a program that schedules its kernels."""

    def __init__(
        self,
        program: Program,
        platform: Platform,
        assumptions: Assumptions,
        simulations: Simulations | None = None,
    ) -> None:
        self.program = program
        self.platform = platform
        self.assumptions = assumptions
        self.functions: Mapping[str, Function] = {
            function.name: function for function in program.functions
        }
        self.compiled: dict[tuple[int, int], tuple[Compiled, int]] = {}
        self.simulations = simulations or Simulations()
        self.simulations.use(platform)
        self.runs: dict[str, KernelRuns] = {}
        interval = round(platform.timings.dma.queue_interval_ns * PS)
        self.wake = round(platform.calibration.wake_ns * PS)
        self.clocks = Clocks(interval, self.wake, most_overlaps(program))
        self.simulated = 0
        self.assumed: dict[str, None] = {}

    # Nodes

    def nodes(self, nodes: tuple[Node, ...], path: str, first: int = 0) -> None:
        for position, node in enumerate(nodes, first):
            here = f"{path}/{label(node, position)}"
            if isinstance(node, Kernel):
                self.kernels((node,), node.overlaps, here)
            elif isinstance(node, Split):
                self.kernels(node.kernels, node.overlaps, here)
            elif isinstance(node, Loop):
                if not isinstance(node.trips, int):
                    self.clocks.rest()
                self.repeat((node.body,), self.trips(node), here)
            elif isinstance(node, While):
                self.repeat((node.condition, node.body), self.trips(node), here)
            elif isinstance(node, If):
                self.clocks.rest()
                self.nodes(taken(node), here)
            elif isinstance(node, Call):
                self.call(node, here)

    def trips(self, node: Loop | While) -> int:
        trips = self.assumptions.trips_of(node)
        name = node.variable if isinstance(node, Loop) else node.register.name
        if (isinstance(node, While) or not isinstance(node.trips, int)) and (
            name not in self.assumptions.trips
        ):
            self.assumed[f"{name}: {trips} trips"] = None
        return trips

    def call(self, node: Call, path: str) -> None:
        function = self.functions.get(node.function)
        if function is None:
            raise MalformedProgramError(f"{path}: function {node.function!r} is not declared.")
        self.nodes(function.body, path)

    def repeat(self, bodies: Sequence[tuple[Node, ...]], trips: int, path: str) -> None:
        """A loop over kernels: until a trip begins like one of those before it.

        All is over between two bodies, for then a register decides.
        """
        history: list[tuple[object, int, dict[str, Known]]] = []
        trip = 0
        while trip < trips:
            first = 0
            for number, body in enumerate(bodies):
                if number:
                    self.clocks.rest()
                self.nodes(body, path, first)
                first += len(body)
            trip += 1
            known = {at: runs.known for at, runs in self.runs.items()}
            history.append((self.clocks.signature(), self.clocks.end, known))
            del history[: -_PERIODS - 1]
            signature, end, _ = history[-1]
            alike = (n for n in range(1, len(history)) if history[-1 - n][0] == signature)
            period = next(alike, 0)
            if period and trips - trip >= period:
                _, before, old = history[-1 - period]
                periods = (trips - trip) // period
                self.clocks.jump(periods * (end - before))
                self.add(periods, end - before, old)
                trip += periods * period
                history.clear()

    def add(self, periods: int, time: int, old: Mapping[str, Known]) -> None:
        """Runs as since some sums were known, `periods` times, each `time` later."""
        for at, runs in self.runs.items():
            known = old.get(at, Known())
            if runs.count > known.runs:
                runs.count += periods * (runs.count - known.runs)
                runs.added += periods * (runs.added - known.added)
                runs.in_time += [
                    Runs(start + time, end + time, (*rounds, (periods, time)))
                    for start, end, rounds in runs.in_time[known.entries :]
                ]

    # Kernels

    def kernels(self, kernels: tuple[Kernel, ...], overlaps: int, path: str) -> None:
        """A kernel, or those that physical cores run beside each other."""
        compiled = [self.compile(kernel, core) for core, kernel in enumerate(kernels)]
        begin = self.clocks.begin(overlaps)
        results, begun = [], []
        for core, (streams, number) in enumerate(compiled):
            state = self.clocks.state(core, begin)
            completed = {
                key: time
                for key in streams.after
                if (time := self.clocks.completed(key) - begin) > -self.wake
            }
            result, is_new = self.simulations.result(number, streams, state, completed)
            self.simulated += result.simulated if is_new else 0
            results.append(result)
            self.note_assumptions(kernels[core], streams, result)
            begun.append((streams, state, completed))
        own = self.own(path, kernels[0])
        if own not in self.runs:
            first = FirstRun(*begun[0], min(result.start for result in results))
            self.runs[own] = KernelRuns(kernels[0], tuple(streams for streams, *_ in begun), first)
        self.note(self.runs[own], compiled, results, begin)

    def note(
        self,
        runs: KernelRuns,
        compiled: Sequence[tuple[Compiled, int]],
        results: Sequence[Simulated],
        begin: int,
    ) -> None:
        """The end of a kernel, or of those beside each other."""
        runs.before = self.clocks.end - begin
        runs.results = tuple(results)
        start = begin + min(result.start for result in results)
        end = begin + max(result.duration for result in results)
        runs.added += max(0, end - self.clocks.end)
        runs.count += 1
        runs.in_time.append(Runs(start, end))
        self.clocks.note(compiled, results, begin, end)

    def compile(self, kernel: Kernel, core: int) -> tuple[Compiled, int]:
        """A kernel as integers, and the number of all that are equal to it."""
        known = self.compiled.get((id(kernel), core))
        if known is None:
            streams = compile_kernel(kernel, self.platform, self.assumptions, core)
            known = self.compiled[id(kernel), core] = streams, self.simulations.number(streams)
        return known

    def own(self, path: str, kernel: Kernel) -> str:
        """The path of a kernel; a second one of a name at one place has a number."""
        name, number = path, 1
        while name in self.runs and self.runs[name].kernel is not kernel:
            number += 1
            name = f"{path}#{number}"
        return name

    def note_assumptions(self, kernel: Kernel, compiled: Compiled, result: Simulated) -> None:
        """Notes the parts of a kernel's time that no instruction or trip of its own tells."""
        for loop in () if compiled.is_static else _open_loops(kernel.body):
            self.trips(loop)
        for instruction in compiled.instructions:
            if isinstance(instruction, Host):
                work = "only its transfers take time"
                if instruction.comparisons:
                    work = (
                        f"each of {instruction.comparisons:,} comparisons takes"
                        f" {HOST_NS_PER_COMPARISON:g} ns there"
                    )
                reason = f" ({instruction.reason})" if instruction.reason else ""
                self.assumed[f"{instruction.function} runs on the host; {work}{reason}"] = None
        if result.averaged:
            self.assumed[
                f"{kernel.name}: a loop reaches no steady state; its last {result.averaged} trips"
                " are assumed to take as long as those before them"
            ] = None


def _open_loops(nodes: Iterable[Node]) -> Iterator[Loop | While]:
    """The loops among and in nodes whose trips registers decide about."""
    for node in nodes:
        if isinstance(node, Loop | While) and control_register(node) is not None:
            yield node
        yield from _open_loops(children(node))


def schedule(
    program: Program,
    machine: Machine | None = None,
    *,
    platform: Platform | None = None,
    assumptions: Assumptions | None = None,
    simulations: Simulations | None = None,
) -> Timeline:
    """A program in time, without values.

    `machine` gives collectives their links; None: the smallest with the program's ranks. `platform`
    replaces both. `simulations` are taken over from other programs, and kept for them.

    UnsupportedProgramError: AWS publishes too little about the chip. MalformedProgramError: engines
    wait for ever.
    """
    platform = platform or Platform.of(program, machine)
    scheduler = _Scheduler(program, platform, assumptions or Assumptions(), simulations)
    scheduler.nodes(program.body, program.name)
    return _timeline(scheduler)


def _timeline(scheduler: _Scheduler) -> Timeline:
    calibration, version = scheduler.platform.calibration, scheduler.platform.core.version
    prologue = calibration.prologue_ns[version]
    launch = prologue + calibration.epilogue_ns[version]
    times = []
    busy: dict[str, float] = {}
    work = Work()
    for path, runs in scheduler.runs.items():
        own = Work()
        for compiled in runs.compiled:
            own.add(compiled, 1)
            work.add(compiled, runs.count)
        times.append(kernel_time_of(path, runs, prologue, own))
        for name, time in times[-1].busy_ns.items():
            busy[name] = busy.get(name, 0.0) + time * runs.count
    return Timeline(
        program=scheduler.program.name,
        total_ns=launch + scheduler.clocks.end / PS,
        launch_ns=launch,
        kernels=tuple(times),
        busy_ns={name: busy.get(name, 0.0) for name in (*NAMES, DMA, COLLECTIVE)},
        instructions=dict(work.instructions),
        hardware_instructions=dict(work.hardware),
        flops=work.flops,
        dma_bytes=work.dma_bytes,
        hbm_bytes=work.hbm_bytes,
        network_bytes=work.network_bytes,
        traffic=work.traffic,
        simulated_instructions=scheduler.simulated,
        assumed=tuple(scheduler.assumed),
    )


def profile(
    program: Program,
    kernel: str,
    machine: Machine | None = None,
    *,
    platform: Platform | None = None,
    most_events: int = 10_000,
    assumptions: Assumptions | None = None,
) -> tuple[Event, ...]:
    """The first events of a kernel, named by its name or path, as if it ran alone from 0.

    KeyError: there is no such kernel.
    """
    platform = platform or Platform.of(program, machine)
    nodes = dict(_kernels(program))
    node = nodes.get(kernel) or {named.name: named for named in nodes.values()}[kernel]
    compiled = compile_kernel(node, platform, assumptions or Assumptions())
    result = simulate(compiled, platform, most_events)
    return tuple(
        Event(
            mnemonic=compiled.instructions[event.leaf].mnemonic,
            lane=LANES[event.kind](event.lane),
            start_ns=event.start / PS,
            end_ns=event.end / PS,
        )
        for event in result.events
    )


def _kernels(program: Program) -> Iterator[tuple[str, Kernel]]:
    for place, node in kernels(program):
        yield f"{place.path}/{node.name}", node
