"""The kernels of a program for which another order promises enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from neuronjax.program.program import Call, Kernel, Loop, Node, Program, Split, While
from neuronjax.program.walk import children, walk

NEGLIGIBLE = 0.025
"""Part of a program's time that the kernels which nobody looks at promise at most, all together."""
TOLERABLE = 0.05
"""The same while there is much left to look at."""
MUCH = 700
"""Instructions of all kernels that are looked at, alike ones once, from which that is much."""
_UNKNOWN_TRIPS = 64
"""Iterations of a loop that only the run knows."""


class Prospect(NamedTuple):
    """A kernel: its time in ns, how much of it may be saved, and how many instructions it has."""

    time: float
    gain: float
    size: int


class Candidate(Protocol):
    """What kernels that are alike have in common: an order is looked for once."""

    @property
    def prospect(self) -> Prospect:
        """What another order promises for each of them."""


def worthwhile(program: Program, candidates: Mapping[int, Candidate]) -> set[int]:
    """The ids of the kernels that are worth looking at, of those with a candidate.

    Those that promise least for each of their instructions are left out first, but for those that
    run beside one that stays: a `Split` takes as long as the slower of its kernels.
    """
    alike: dict[int, list[int]] = {}
    runs = kernel_runs(program)
    for key in runs:
        if key in candidates:
            alike.setdefault(id(candidates[key]), []).append(key)
    whole: dict[int, Prospect] = {}
    for group, keys in alike.items():
        prospect = candidates[keys[0]].prospect
        times = sum(runs[key][1] for key in keys)
        size = prospect.size if prospect.gain else 0
        whole[group] = Prospect(times * prospect.time, times * prospect.gain, size)
    time = sum(prospect.time for prospect in whole.values())
    size = sum(prospect.size for prospect in whole.values())
    lost = 0.0
    kept = set(whole)
    for group, prospect in sorted(whole.items(), key=lambda item: _promise(item[1])):
        lost += prospect.gain
        if lost > time * (TOLERABLE if size > MUCH else NEGLIGIBLE):
            break
        kept.remove(group)
        size -= prospect.size
    chosen = {key for group in kept for key in alike[group]}
    beside = (key for keys in _splits(program) if not keys.isdisjoint(chosen) for key in keys)
    return chosen | {key for key in beside if key in candidates}


def _splits(program: Program) -> Iterator[set[int]]:
    """The ids of the kernels of each `Split`."""
    for _, node in walk(program):
        if isinstance(node, Split):
            yield set(map(id, node.kernels))


def _promise(prospect: Prospect) -> float:
    """What is gained for each instruction that is looked at."""
    return prospect.gain / max(1, prospect.size)


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
