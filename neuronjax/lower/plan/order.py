"""Groups in an order that saves copies: what overwrites a value comes after what reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import root_of
from neuronjax.lower.plan.homes import Home, overwritten


def ordered(groups: Sequence[Group], fusion: Fusion, homes: Sequence[Home]) -> list[Group]:
    """The groups, those that overwrite a value moved behind its readers if nobody waits for them.

    Numbers are given anew.
    """
    line = _Line(list(groups), fusion, {group: _claims(group, fusion, homes) for group in groups})
    for group in groups:
        line.sink(group)
    for number, group in enumerate(line.order):
        group.number = number
    return line.order


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
        found = (self.place[r] for value in self.claims[group] for r in self.readers.get(value, ()))
        last = max(found, default=here)
        if last <= here:
            return
        passed = self.order[here + 1 : last + 1]
        values = (value for each in passed for value in self.reads[each])
        waited = any(self.fusion.of.get(value) is group for value in values)
        if waited or any(self.claims[each] & self.reads[group] for each in passed):
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
    found = {root_of(value) for op in group.operations for value in overwritten(op)}
    for home in homes:
        if fusion.of.get(root_of(home.result)) is group:
            found.add(home.parameter)
    return found
