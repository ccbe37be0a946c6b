"""Groups in an order that saves copies: what overwrites a value comes after what reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.fuse import Fusion, Group, root_of
from neuronjax.lower.homes import Home, overwritten


def ordered(groups: Sequence[Group], fusion: Fusion, homes: Sequence[Home]) -> list[Group]:
    """The groups, those that overwrite a value moved behind its readers if nobody waits for them.

    Numbers are given anew.
    """
    reads = {group: set(_reads(group)) for group in groups}
    claims = {group: _claims(group, fusion, homes) for group in groups}
    order = list(groups)
    for group in groups:
        if claims[group]:
            _sink(group, order, reads, claims, fusion)
    for number, group in enumerate(order):
        group.number = number
    return order


def _sink(
    group: Group,
    order: list[Group],
    reads: Mapping[Group, set[Value]],
    claims: Mapping[Group, set[Value]],
    fusion: Fusion,
) -> None:
    here = order.index(group)
    readers = [i for i in range(here + 1, len(order)) if claims[group] & reads[order[i]]]
    if not readers:
        return
    last = readers[-1]
    passed = order[here + 1 : last + 1]
    waited = any(fusion.of.get(value) is group for each in passed for value in reads[each])
    if waited or any(claims[each] & reads[group] for each in passed):
        return
    order.insert(last, order.pop(here))


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
