"""Cost of one run of a program by the user's lines, and by the layers of the model.

Kernels of several lines or layers are shared out: time as their parts take it, all else like time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from neuronjax.profiling.records import Part, ProgramProfile


@dataclass(slots=True)
class Cost:
    """Time in ns, kernels at all places, floating-point operations, bytes of HBM, and the busy
    times of resources in ns."""

    time: float = 0.0
    kernels: int = 0
    flops: float = 0.0
    hbm: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)

    def add(self, other: Cost) -> None:
        """Adds another one to it."""
        self.time += other.time
        self.kernels += other.kernels
        self.flops += other.flops
        self.hbm += other.hbm
        for name, time in other.busy.items():
            self.busy[name] = self.busy.get(name, 0.0) + time


def by_line(program: ProgramProfile) -> dict[str, Cost]:
    """Line -> cost, the costliest first; the empty line is that of what nobody knows."""
    found = _by(program, lambda part: part.source)
    return dict(sorted(found.items(), key=lambda pair: -pair[1].time))


def by_layer(program: ProgramProfile) -> dict[str, Cost]:
    """Name scope -> cost with those within it. A scope is followed by those within it, and the
    costliest of them comes first; the empty scope is what lies in none."""
    own = _by(program, lambda part: part.scope)
    whole: defaultdict[str, Cost] = defaultdict(Cost)
    for scope, cost in own.items():
        for around in _around(scope):
            whole[around].add(cost)
    order = sorted(whole, key=lambda scope: [(-whole[each].time, each) for each in _around(scope)])
    return {scope: whole[scope] for scope in order}


def _around(scope: str) -> list[str]:
    """A scope and those about it, the outermost first."""
    names = scope.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _by(program: ProgramProfile, key: Callable[[Part], str]) -> dict[str, Cost]:
    found: defaultdict[str, Cost] = defaultdict(Cost)
    for name, cost in _costs(program, key):
        found[name].add(cost)
    return found


def _costs(program: ProgramProfile, key: Callable[[Part], str]) -> Iterator[tuple[str, Cost]]:
    """Each kernel's cost by key."""
    for each in program.kernels:
        times: defaultdict[str, float] = defaultdict(float)
        for part in each.parts:
            times[key(part)] += part.duration_ns
        whole = sum(times.values())
        hbm = each.work.get("hbm_read_bytes", 0) + each.work.get("hbm_write_bytes", 0)
        for name, time in times.items():
            runs = each.runs * (time / whole if whole else 1 / len(times))
            busy = {resource: one * runs for resource, one in each.busy_ns.items()}
            yield (
                name,
                Cost(
                    time=each.duration_ns * runs,
                    kernels=1,
                    flops=each.work.get("hardware_flops", 0) * runs,
                    hbm=hbm * runs,
                    busy=busy,
                ),
            )
