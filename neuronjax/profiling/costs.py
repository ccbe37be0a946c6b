"""Cost of one run of a program by source line, and by layer of the model.

The cost of a kernel that serves several lines or layers is divided among them in proportion to the
time of its parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from neuronjax.hlo.location import split_phase
from neuronjax.profiling.records import Part, ProgramProfile


@dataclass(slots=True)
class Cost:
    """Time in ns, number of kernels, floating-point operations, bytes of HBM traffic, busy time by
    resource, and time by the phases of a gradient, in ns."""

    time: float = 0.0
    kernels: int = 0
    flops: float = 0.0
    hbm: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, other: Cost) -> None:
        """Adds `other` to this cost, in place."""
        self.time += other.time
        self.kernels += other.kernels
        self.flops += other.flops
        self.hbm += other.hbm
        for name, time in other.busy.items():
            self.busy[name] = self.busy.get(name, 0.0) + time
        for name, time in other.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + time


def by_line(program: ProgramProfile) -> dict[str, Cost]:
    """Line -> cost, costliest first; work without a known line is under the empty string."""
    costs = _by(program, lambda part: part.source)
    return dict(sorted(costs.items(), key=lambda pair: -pair[1].time))


def by_layer(program: ProgramProfile) -> dict[str, Cost]:
    """Name scope -> cost, nested scopes included. A scope is followed by those nested in it,
    costliest first; work outside all scopes is under the empty string."""
    own = _by(program, lambda part: part.scope)
    whole: defaultdict[str, Cost] = defaultdict(Cost)
    for scope, cost in own.items():
        layer, phase = split_phase(scope)
        cost.phases = {phase: cost.time}
        for around in _enclosing(layer):
            whole[around].add(cost)
    order = sorted(
        whole, key=lambda scope: [(-whole[outer].time, outer) for outer in _enclosing(scope)]
    )
    return {scope: whole[scope] for scope in order}


def _enclosing(scope: str) -> list[str]:
    """A scope and those that enclose it, outermost first."""
    names = scope.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _by(program: ProgramProfile, key: Callable[[Part], str]) -> dict[str, Cost]:
    costs: defaultdict[str, Cost] = defaultdict(Cost)
    for name, cost in _costs(program, key):
        costs[name].add(cost)
    return costs


def _costs(program: ProgramProfile, key: Callable[[Part], str]) -> Iterator[tuple[str, Cost]]:
    """The cost of each kernel, divided among the keys of its parts."""
    for kernel in program.kernels:
        times: defaultdict[str, float] = defaultdict(float)
        for part in kernel.parts:
            times[key(part)] += part.added_ns
        whole = sum(times.values())
        hbm = kernel.work.get("hbm_read_bytes", 0) + kernel.work.get("hbm_write_bytes", 0)
        for name, time in times.items():
            runs = kernel.runs * (time / whole if whole else 1 / len(times))
            busy = {resource: busy_ns * runs for resource, busy_ns in kernel.busy_ns.items()}
            yield (
                name,
                Cost(
                    time=kernel.added_ns * runs,
                    kernels=1,
                    flops=kernel.work.get("hardware_flops", 0) * runs,
                    hbm=hbm * runs,
                    busy=busy,
                ),
            )
