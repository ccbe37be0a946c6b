"""The kernels of a program for which another order promises enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from neuronjax.lower.tuning import Tuning
from neuronjax.program.program import Call, Kernel, Loop, Node, Program, Split, While
from neuronjax.program.walk import children, walk


class Prospect(NamedTuple):
    """A kernel: its time in ns, how much of it may be saved, and how many instructions it has."""

    time: float
    gain: float
    size: int


class Promising(Protocol):
    """A kind of kernels, which are alike: an order is looked for once."""

    @property
    def prospect(self) -> Prospect:
        """What another order promises for each kernel of the kind."""


Kind = TypeVar("Kind", bound=Promising)


@dataclass(frozen=True)
class Shares(Generic[Kind]):
    """The kinds of kernels that a program has, and how much each counts."""

    runs: Mapping[Kind, float]
    """How often the kernels of a kind run, all together."""
    beside: Collection[Set[Kind]] = ()
    """Kinds that run beside each other on several cores."""

    def extrapolated(self, deeper: Shares[Kind], share: float) -> Shares[Kind]:
        """The shares where the time is extrapolated from this program and a deeper one.

        A kernel of which the two have n and m counts ``n + share * (m - n)`` times there, also if
        that is negative: what its time is wrong by is then wrong in the other direction.
        """
        runs = {
            kind: abs(n + share * (deeper.runs.get(kind, 0.0) - n))
            for kind, n in (dict.fromkeys(deeper.runs, 0.0) | dict(self.runs)).items()
        }
        return Shares(runs, (*self.beside, *deeper.beside))


def shares_of(program: Program, kinds: Mapping[int, Kind], unknown_trips: int) -> Shares[Kind]:
    """The shares of a program. `kinds` has the kinds of kernels by their ids; others are left out.

    Loops that only the run knows have `unknown_trips`.
    """
    runs: dict[Kind, float] = {}
    for key, (_, times) in kernel_runs(program, unknown_trips).items():
        if key in kinds:
            runs[kinds[key]] = runs.get(kinds[key], 0.0) + times
    return Shares(runs, [beside & runs.keys() for beside in _splits(program, kinds)])


def choose_kinds(shares: Shares[Kind], tuning: Tuning) -> frozenset[Kind]:
    """The kinds of kernels that are worth looking at.

    Those that promise least for each of their instructions are left out first, but for those that
    run beside one that stays: a `Split` takes as long as the slower of its kernels.
    """
    whole: dict[Kind, Prospect] = {}
    for kind, times in shares.runs.items():
        prospect = kind.prospect
        size = prospect.size if prospect.gain else 0
        whole[kind] = Prospect(times * prospect.time, times * prospect.gain, size)
    time = sum(prospect.time for prospect in whole.values())
    size = sum(prospect.size for prospect in whole.values())
    lost = 0.0
    kept = set(whole)
    for kind, prospect in sorted(whole.items(), key=lambda item: _promise(item[1])):
        lost += prospect.gain
        is_much = size > tuning.much_instructions
        if lost > time * (tuning.tolerable_share if is_much else tuning.negligible_share):
            break
        kept.remove(kind)
        size -= prospect.size
    return frozenset(kept.union(*(kinds for kinds in shares.beside if not kept.isdisjoint(kinds))))


def _splits(program: Program, kinds: Mapping[int, Kind]) -> Iterator[Set[Kind]]:
    """The kinds of the kernels of each `Split`."""
    for _, node in walk(program):
        if isinstance(node, Split):
            yield {kinds[id(kernel)] for kernel in node.kernels if id(kernel) in kinds}


def _promise(prospect: Prospect) -> float:
    """What is gained for each instruction that is looked at."""
    return prospect.gain / max(1, prospect.size)


def kernel_runs(program: Program, unknown_trips: int) -> Mapping[int, tuple[Kernel, int]]:
    """The kernels, and how often each runs at most, by id."""
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
                visit(children(node), times * _trips(node, unknown_trips))

    visit(program.body, 1)
    return {key: (kernel, runs[key]) for key, kernel in kernels.items()}


def _trips(node: Node, unknown: int) -> int:
    if isinstance(node, Loop):
        return node.most_trips or unknown
    return unknown if isinstance(node, While) else 1
