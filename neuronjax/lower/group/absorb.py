"""Putting a group together with a group that it alone reads from.

Groups grow towards what follows: an operation joins the newest group of its operands, and finds the
results of older ones in memory. If nobody else between the two reads an older group, and its
dimensions are those of the newer one, both become one kernel: moments, scaled gradients and
parameters of an optimizer are walked over once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from neuronjax.hlo.graph import Value
from neuronjax.lower.chain.boxes import is_resident
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import Map, root_of
from neuronjax.lower.tuning import Tuning

Readers = dict[int, set[int]]
"""Number of a group -> numbers of the groups that read its values."""


def absorbed(groups: Sequence[Group], fusion: Fusion) -> list[Group]:
    """The groups, with those put together that may be."""
    readers = _readers(groups, fusion)
    for group in groups:
        while any(_absorb(fusion, readers, group, value, way) for value, way in group.inputs):
            pass
    return [group for group in groups if group.operations]


def _readers(groups: Sequence[Group], fusion: Fusion) -> Readers:
    readers: Readers = {}
    for group in groups:
        for op in group.operations:
            captured = [value for region in op.regions for value in region.captured()]
            for value in (*op.operands, *captured):
                source = fusion.of.get(root_of(value))
                if source is not None and source is not group:
                    readers.setdefault(source.number, set()).add(group.number)
    return readers


def _absorb(fusion: Fusion, readers: Readers, group: Group, value: Value, way: Map) -> bool:
    """Takes the group that makes an input into the group that reads it, where that may be."""
    older = fusion.of.get(value)
    if older is None or older is group or value not in older.maps:
        return False
    translation = _translation(older, group, value, way)
    if translation is None or not _may_join(fusion, readers, older, group, translation):
        return False
    _join(fusion, readers, older, group, translation)
    return True


def _translation(older: Group, group: Group, value: Value, way: Map) -> dict[int, int] | None:
    """Axis of the older domain -> axis of the newer one; None unless they are the same."""
    if older.domain is None or group.domain is None:
        return None
    axes = {
        own: target
        for own, target in zip(older.maps[value], way, strict=True)
        if own is not None and target is not None
    }
    if set(axes) != _varied(older) or set(axes.values()) != _varied(group):
        return None
    same = all(older.domain[own] == group.domain[target] for own, target in axes.items())
    return axes if same else None


def _varied(group: Group) -> set[int]:
    assert group.domain is not None
    return {axis for axis, size in enumerate(group.domain) if size != 1}


def _may_join(
    fusion: Fusion, readers: Readers, older: Group, group: Group, translation: Mapping[int, int]
) -> bool:
    """Whether nobody needs the older group before the newer one, and one kernel can do both."""
    if not older.takes_reductions or older.inner is not None or group.inner is not None:
        return False
    if len(older.operations) + len(group.operations) > fusion.tuning.group_operations:
        return False
    if any(reader < group.number for reader in readers.get(older.number, ())):
        return False
    return _rows_agree(older, group, translation, fusion.tuning) and _walked_alike(
        fusion, older, group, translation
    )


def _rows_agree(older: Group, group: Group, translation: Mapping[int, int], tuning: Tuning) -> bool:
    reduced = frozenset(translation[axis] for axis in older.reduced)
    if reduced and (not group.takes_reductions or group.reduced not in (frozenset(), reduced)):
        return False
    reduced |= group.reduced
    if not reduced:
        return True
    assert group.domain is not None
    row = math.prod(group.domain[axis] for axis in reduced)
    return len(reduced) < 3 and is_resident(row, tuning.held_bytes, tuning)


def _walked_alike(
    fusion: Fusion, older: Group, group: Group, translation: Mapping[int, int]
) -> bool:
    """Whether the newer group walks over every value of the older one as that does."""
    for value, way in group.inputs:
        if fusion.of.get(value) is older and way != _translated(older.maps[value], translation):
            return False
    return fusion.sees_in_place(group, older)


def _translated(way: Map, translation: Mapping[int, int]) -> Map:
    return tuple(None if axis is None else translation[axis] for axis in way)


def _join(
    fusion: Fusion, readers: Readers, older: Group, group: Group, translation: Mapping[int, int]
) -> None:
    first = 0 if group.takes_reductions else 1  # a product stays the first of its group
    group.operations[first:first] = older.operations
    for op in older.operations:
        for value in op.results:
            fusion.of[value] = group
    for value, way in older.maps.items():
        group.maps[value] = _translated(way, translation)
    inputs = {(value, _translated(way, translation)): None for value, way in older.inputs}
    kept = {key: None for key in group.inputs if fusion.of.get(key[0]) is not group}
    group.inputs = {**inputs, **kept}
    group.reduced |= frozenset(translation[axis] for axis in older.reduced)
    later = readers.pop(older.number, set()) - {group.number}
    readers.setdefault(group.number, set()).update(later)
    for reader in readers.values():
        if older.number in reader:
            reader.discard(older.number)
            reader.add(group.number)
    older.operations = []
    older.maps, older.inputs, older.domain = {}, {}, None
