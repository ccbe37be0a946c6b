"""What collectives send over each link of a machine.

In a program they go round rings (`network`): each ring here is that of a group's chips in the order
of `Topology.path`, closed by the shortest way back. Between two chips without a link of their own
data goes over others, one axis after the other. Source: neuron-runtime/explore,
intranode-collective-comm.rst.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from neuronjax.machine.machine import Machine
from neuronjax.machine.topology import Topology, Wiring
from neuronjax.timing.network import Op

Link = tuple[int, int]
"""Two chips with a direct link, the lower number first."""

PASSES: Mapping[Op, int] = {Op.ALL_REDUCE: 2, Op.ALL_GATHER: 1, Op.REDUCE_SCATTER: 1}
"""How often data goes round a ring."""


@dataclass(slots=True)
class LinkTraffic:
    """Bytes over each link, both directions added up, and over the network between instances.

    Chips beyond those of a machine are on further ones of its kind.
    """

    links: defaultdict[Link, float] = field(default_factory=lambda: defaultdict(float))
    network: float = 0.0

    def add(self, op: Op, nbytes: float, groups: Iterable[Sequence[int]], machine: Machine) -> None:
        """Adds a collective of `nbytes`, counted as `network.collective_time` does.

        Each group is a sequence of cores; those beyond the machine are on further ones of its kind.
        For permutes a group is a pair, of which the first core sends.
        """
        for group in groups:
            for a, b, sent in _hops(op, nbytes, group, machine):
                self._send(a, b, sent, machine)

    def _send(self, a: int, b: int, nbytes: float, machine: Machine) -> None:
        """Adds bytes between two chips, which count on over instances."""
        chips = machine.instance.chips
        if a // chips != b // chips:
            self.network += nbytes
            return
        first = a // chips * chips
        for near, far in route(machine.topology, a - first, b - first):
            self.links[first + near, first + far] += nbytes


def _hops(
    op: Op, nbytes: float, group: Sequence[int], machine: Machine
) -> Iterator[tuple[int, int, float]]:
    """Pairs of chips, and what goes from one to the other."""
    chips = Counter(core // machine.cores_per_chip for core in group)
    if op is Op.PERMUTE:
        first, second = (core // machine.cores_per_chip for core in group)
        if first != second:
            yield first, second, nbytes
    elif op is Op.ALL_TO_ALL:
        for a in chips:
            for b in chips:
                if a != b:
                    yield a, b, nbytes / len(group) * chips[a] * chips[b]
    elif len(chips) > 1:
        ring = _ring(machine, chips)
        share = nbytes * (len(chips) - 1) / len(chips)
        for a, b in pairwise([*ring, ring[0]]):
            yield a, b, PASSES[op] * share


def _ring(machine: Machine, chips: Iterable[int]) -> list[int]:
    count = machine.instance.chips
    place = {chip: at for at, chip in enumerate(machine.topology.path)}
    return sorted(chips, key=lambda chip: (chip // count, place[chip % count]))


def route(topology: Topology, a: int, b: int) -> Iterator[Link]:
    """The links of a shortest way between two chips; a switch takes one, whatever it changes."""
    here, there = list(topology.coords(a)), topology.coords(b)
    switched = [number for number, axis in enumerate(topology.axes) if axis.wiring is Wiring.SWITCH]
    if any(here[number] != there[number] for number in switched):
        after = [there[n] if n in switched else here[n] for n in range(len(here))]
        yield _link(topology, here, after)
        here = after
    for number, axis in enumerate(topology.axes):
        while here[number] != there[number]:
            after = list(here)
            ahead = (there[number] - here[number]) % axis.size
            forward = ahead <= axis.size / 2
            if axis.wiring is Wiring.LINE:
                forward = there[number] > here[number]
            after[number] = (here[number] + (1 if forward else -1)) % axis.size
            yield _link(topology, here, after)
            here = after


def _link(topology: Topology, a: Sequence[int], b: Sequence[int]) -> Link:
    ends = sorted((topology.chip_at(a), topology.chip_at(b)))
    return ends[0], ends[1]
