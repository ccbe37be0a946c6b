"""The kernels of a program for which another order promises enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from neuronjax.program.program import Call, Kernel, Loop, Node, Program, While
from neuronjax.program.walk import children

NEGLIGIBLE = 0.025
"""Part of a program's time that the kernels which nobody looks at promise at most, all together."""
TOLERABLE = 0.2
"""The same while there is much left to look at."""
MUCH = 700
"""Instructions of all kernels that are looked at, from which that is much."""
_UNKNOWN_TRIPS = 64
"""Iterations of a loop that only the run knows."""


class Prospect(NamedTuple):
    """A kernel: its time in ns, how much of it may be saved, and how many instructions it has."""

    time: float
    gain: float
    size: int


NO_PROSPECT = Prospect(0.0, 0.0, 0)
"""Of a kernel that is not looked at anyway."""


def worthwhile(program: Program, prospect: Callable[[Kernel], Prospect]) -> set[int]:
    """The ids of the kernels that are worth looking at.

    Those that promise least for each of their instructions are left out first.
    """
    runs = kernel_runs(program)
    prospects = {key: prospect(kernel) for key, (kernel, _) in runs.items()}
    gains = {key: prospect.gain * runs[key][1] for key, prospect in prospects.items()}
    time = sum(prospect.time * runs[key][1] for key, prospect in prospects.items())
    size = sum(prospect.size for key, prospect in prospects.items() if gains[key])
    lost = 0.0
    kept = set(gains)
    for key in sorted(gains, key=lambda key: gains[key] / max(1, prospects[key].size)):
        lost += gains[key]
        if lost > time * (TOLERABLE if size > MUCH else NEGLIGIBLE):
            break
        kept.remove(key)
        size -= prospects[key].size if gains[key] else 0
    return kept


def kernel_runs(program: Program) -> Mapping[int, tuple[Kernel, int]]:
    """By id: the kernels, and how often each runs at most."""
    bodies = {function.name: function.body for function in program.functions}
    kernels: dict[int, Kernel] = {}
    runs: Counter[int] = Counter()

    def visit(nodes: tuple[Node, ...], times: int) -> None:
        for node in nodes:
            if isinstance(node, Kernel):
                kernels[id(node)] = node
                runs[id(node)] += times
            elif isinstance(node, Call):
                visit(bodies[node.function], times)
            else:
                visit(children(node), times * _trips(node))

    visit(program.body, 1)
    return {key: (kernel, runs[key]) for key, kernel in kernels.items()}


def _trips(node: Node) -> int:
    if isinstance(node, Loop):
        return node.most_trips or _UNKNOWN_TRIPS
    return _UNKNOWN_TRIPS if isinstance(node, While) else 1
