"""Semaphores: every wait ends.

Source: Neuron docs, "Trainium/Inferentia2 architecture guide", engines synchronise by semaphores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine
from neuronjax.program.instruction import Instruction, Semaphore
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import Place, children, kernels, within

MOST_EVENTS = 20_000
"""Kernels with more executed instructions than this are not checked for circular waits."""


class _Leaf(NamedTuple):
    """An instruction that waits or signals, in a list of nodes, and how often loops about the list
    run."""

    node: Instruction
    about: Place
    position: int
    trips: dict[str, int]
    times: int | None

    @property
    def path(self) -> str:
        return within(self.about, self.node, self.position).path


def semaphores(program: Program) -> Iterator[Violation]:
    """Semaphores are declared, signalled and waited for, up to at most their final count."""
    for place, kernel in kernels(program):
        leaves = list(_leaves(kernel.body, place))
        yield from _declared(place, kernel, leaves)
        totals = _totals(leaves)
        if totals is not None:
            yield from _unreachable(leaves, totals)


def _leaves(nodes: tuple[Node, ...], place: Place) -> Iterator[_Leaf]:
    trips, times = place.trips, place.times
    for position, node in enumerate(nodes):
        if not isinstance(node, Instruction):
            yield from _leaves(children(node), within(place, node, position))
        elif node.waits or node.signals:
            yield _Leaf(node, place, position, trips, times)


def _declared(place: Place, kernel: Kernel, leaves: list[_Leaf]) -> Iterator[Violation]:
    waited = {wait.semaphore for leaf in leaves for wait in leaf.node.waits}
    signalled = {signal.semaphore for leaf in leaves for signal in leaf.node.signals}
    for semaphore in sorted(waited | signalled, key=lambda semaphore: semaphore.name):
        if semaphore not in kernel.semaphores:
            yield Violation(place.path, f"!{semaphore.name} is not declared", "a declaration")
    for semaphore in kernel.semaphores:
        if semaphore not in signalled & waited:
            missing = "waited for" if semaphore in signalled else "signalled"
            yield Violation(place.path, f"!{semaphore.name} is never {missing}", "both")
    for leaf in leaves:
        for signal in leaf.node.signals:
            if signal.by < 1:
                actual = f"!{signal.semaphore.name} += {signal.by}"
                yield Violation(leaf.path, actual, "at least 1")


def _totals(leaves: list[_Leaf]) -> Counter[Semaphore] | None:
    """The greatest final count of every semaphore; None if unknown."""
    totals: Counter[Semaphore] = Counter()
    for leaf in leaves:
        if leaf.times is None:
            return None
        for signal in leaf.node.signals:
            totals[signal.semaphore] += signal.by * leaf.times
    return totals


def _unreachable(leaves: list[_Leaf], totals: Counter[Semaphore]) -> Iterator[Violation]:
    for leaf in leaves:
        for wait in leaf.node.waits:
            if not set(wait.count.variables) <= leaf.trips.keys():
                continue
            most = wait.count.interval(leaf.trips).high
            if most > totals[wait.semaphore]:
                actual = f"a wait for !{wait.semaphore.name} >= {most}"
                yield Violation(leaf.path, actual, f"at most {totals[wait.semaphore]}")


def deadlock(program: Program) -> Iterator[Violation]:
    """Engines do not wait for each other in a circle.

    Kernels with conditions, loops of unknown length or very many instructions are not checked, nor
    are those that wait for more than the final count of a semaphore.
    """
    ending: set[Hashable] = set()
    for place, kernel in kernels(program):
        size = _executed(kernel.body)
        if size is None or size > MOST_EVENTS:
            continue
        order = _order(kernel.body)
        if order in ending:
            continue
        leaves = list(_leaves(kernel.body, place))
        totals = _totals(leaves)
        if totals is None or list(_unreachable(leaves, totals)):
            continue
        violations = list(_simulate(kernel, place))
        if not violations:
            ending.add(order)
        yield from violations


def _order(nodes: tuple[Node, ...]) -> Hashable:
    """What engines do with semaphores, which many kernels have in common."""
    order: list[Hashable] = []
    for node in nodes:
        if isinstance(node, Loop):
            order.append((node.variable, node.trips, _order(node.body)))
        elif isinstance(node, Instruction) and (node.waits or node.signals):
            order.append((node.engine, node.waits, node.signals))
    return tuple(order)


def _executed(nodes: tuple[Node, ...]) -> int | None:
    """The number of executed instructions; None if it depends on registers."""
    total = 0
    for node in nodes:
        if isinstance(node, Instruction):
            total += 1
        elif isinstance(node, Loop) and isinstance(node.trips, int):
            inner = _executed(node.body)
            if inner is None:
                return None
            total += inner * node.trips
        else:
            return None
    return total


def _simulate(kernel: Kernel, place: Place) -> Iterator[Violation]:
    """Lets every engine proceed through its instructions as far as the semaphores allow."""
    streams: dict[Engine | None, list[_Event]] = {}
    _expand(kernel.body, place, {}, streams)
    counts: Counter[str] = Counter()
    positions = dict.fromkeys(streams, 0)
    progress = True
    while progress:
        progress = False
        for engine, stream in streams.items():
            first = positions[engine]
            positions[engine] = _proceeded(stream, first, counts)
            progress = progress or positions[engine] > first
    for engine, stream in streams.items():
        if positions[engine] < len(stream):
            event = stream[positions[engine]]
            waits = ", ".join(
                f"!{wait.semaphore.name} >= {_count(wait.count, event.values)},"
                f" which stays at {counts[wait.semaphore.name]}"
                for wait in event.node.waits
            )
            path = within(event.place, event.node, event.position).path
            yield Violation(
                path, f"waits forever: {waits}", "a signal that comes without this wait"
            )


def _proceeded(stream: list[_Event], position: int, counts: Counter[str]) -> int:
    """How far an engine gets from a position on; what it signals is added to `counts`."""
    while position < len(stream):
        node, _, _, values = stream[position]
        for wait in node.waits:
            count = wait.count
            needed = _count(count, values) if count.terms else count.base
            if counts[wait.semaphore.name] < needed:
                return position
        for signal in node.signals:
            counts[signal.semaphore.name] += signal.by
        position += 1
    return position


def _count(count: Affine, values: dict[str, int]) -> int:
    """The count of a wait; variables out of scope, which another rule reports, count as 0."""
    total = count.base
    for name, factor in count.terms:
        total += factor * values.get(name, 0)
    return total


class _Event(NamedTuple):
    """An instruction that waits or signals, its place, and the values of the loop variables."""

    node: Instruction
    place: Place
    position: int
    values: dict[str, int]


def _expand(
    nodes: tuple[Node, ...],
    place: Place,
    values: dict[str, int],
    streams: dict[Engine | None, list[_Event]],
) -> None:
    """Appends the events of `nodes`, in the order of execution, to the streams of their engines."""
    for position, node in enumerate(nodes):
        if isinstance(node, Instruction):
            if node.waits or node.signals:
                streams.setdefault(node.engine, []).append(_Event(node, place, position, values))
        elif isinstance(node, Loop):
            node_place = within(place, node, position)
            for step in range(node.most_trips or 0):
                _expand(node.body, node_place, {**values, node.variable: step}, streams)
