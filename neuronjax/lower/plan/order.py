"""Groups in an order that saves copies and memory: what overwrites a value comes after what reads
it, and what takes no memory of its own, such as a sum that a loop carries, as soon as it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import root_of
from neuronjax.lower.plan.homes import Home, overwritten


def ordered(
    groups: Sequence[Group], fusion: Fusion, homes: Sequence[Home], results: Sequence[Value]
) -> list[Group]:
    """The groups of a graph with these results.

    Those that make nothing but what takes the place of another value follow what they read, which
    may make room then; those that overwrite a value are moved behind its readers if nobody waits
    for them. Numbers are given anew.
    """
    claims = {group: _claims(group, fusion, homes) for group in groups}
    line = _Line(_risen(groups, fusion, homes, results), fusion, claims)
    for group in groups:
        line.sink(group)
    for number, group in enumerate(line.order):
        group.number = number
    return line.order


def _risen(
    groups: Sequence[Group], fusion: Fusion, homes: Sequence[Home], results: Sequence[Value]
) -> list[Group]:
    """Groups that make nothing but values at home, behind the last one whose results they read,
    and behind those that read what they overwrite."""
    reads = {group: set(_reads(group)) for group in groups}
    readers: dict[Value, list[Group]] = {}
    for group in groups:
        for value in reads[group]:
            if fusion.of.get(value) is not group:
                readers.setdefault(value, []).append(group)
    wanted: dict[Group, set[Value]] = {}
    for value in (*readers, *map(root_of, results)):
        if (maker := fusion.of.get(value)) is not None:
            wanted.setdefault(maker, set()).add(value)
    parameter = {root_of(home.result): home.parameter for home in homes}
    place: dict[Group, int] = {}
    for at, group in enumerate(groups):
        made = wanted.get(group, set())
        place[group] = at
        if made <= parameter.keys() and not any(map(overwritten, group.operations)):
            taken = (reader for value in made for reader in readers.get(parameter[value], ()))
            made_before = (fusion.of[value] for value in reads[group] if value in fusion.of)
            before = {*taken, *made_before} - {group}
            if before <= place.keys():
                place[group] = max((place[earlier] for earlier in before), default=at)
    return sorted(groups, key=place.__getitem__)


class _Line:
    """Groups in order, with the values that they read and those that they would overwrite."""

    def __init__(
        self, order: list[Group], fusion: Fusion, claims: Mapping[Group, set[Value]]
    ) -> None:
        self.order, self.fusion, self.claims = order, fusion, claims
        self.reads = {group: set(_reads(group)) for group in order}
        self.place = {group: place for place, group in enumerate(order)}
        self.readers: dict[Value, list[Group]] = {}
        for group, values in self.reads.items():
            for value in values:
                self.readers.setdefault(value, []).append(group)

    def sink(self, group: Group) -> None:
        """Moves a group behind the last one that reads what it would overwrite."""
        here = self.place[group]
        positions = (
            self.place[r] for value in self.claims[group] for r in self.readers.get(value, ())
        )
        last = max(positions, default=here)
        if last <= here:
            return
        passed = self.order[here + 1 : last + 1]
        values = (value for other in passed for value in self.reads[other])
        waited = any(self.fusion.of.get(value) is group for value in values)
        if waited or any(self.claims[other] & self.reads[group] for other in passed):
            return
        self.order.insert(last, self.order.pop(here))
        for place in range(here, last + 1):
            self.place[self.order[place]] = place


def _reads(group: Group) -> Iterator[Value]:
    for op in group.operations:
        yield from map(root_of, (*op.operands, *_captured(op)))


def _captured(op: Op) -> list[Value]:
    return [value for region in op.regions for value in region.captured()]


def _claims(group: Group, fusion: Fusion, homes: Sequence[Home]) -> set[Value]:
    """Values whose memory a group would take over."""
    claims = {root_of(value) for op in group.operations for value in overwritten(op)}
    for home in homes:
        if fusion.of.get(root_of(home.result)) is group:
            claims.add(home.parameter)
    return claims
