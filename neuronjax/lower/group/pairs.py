"""Finding pairs of products whose results the same operations take, element by element.

A gate and what passes through it, weights of attention and their gradients: the older product and
what follows it go along with the newer one, and what is between them stays in tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.hlo.graph import Op
from neuronjax.lower.group.attention_groups import is_product, translation
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import root_of
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS


def paired(groups: Sequence[Group], fusion: Fusion) -> list[Group]:
    """The groups, with pairs put together in the place of their newer product.

    What reads the older one and was in between comes after the pair.
    """
    result = list(groups)
    for newer in groups:
        older = _older(newer, result, fusion)
        if older is None:
            continue
        late = _readers(older, newer, result, fusion)
        whole = _joined_chain(older, newer)
        place = result.index(newer)
        early = [group for group in result[:place] if group is not older and group not in late]
        result = [*early, whole, *late, *result[place + 1 :]]
        for op in whole.operations:
            for value in op.results:
                fusion.of[value] = whole
        for number, group in enumerate(result):
            group.number = number
    return result


def _older(newer: Group, groups: Sequence[Group], fusion: Fusion) -> Group | None:
    if newer not in groups or not _may_pair(newer, fusion.tuning):
        return None
    for value, _ in newer.inputs:
        older = fusion.of.get(value)
        if (
            older is None
            or older is newer
            or older not in groups
            or not _may_pair(older, fusion.tuning)
        ):
            continue
        if not _alike(older, newer) or not fusion.sees_in_place(newer, older):
            continue
        if not _sources(newer, fusion) & set(_readers(older, newer, groups, fusion)):
            return older
    return None


def _sources(group: Group, fusion: Fusion) -> set[Group]:
    """The groups whose values a group reads."""
    sources = set()
    for op in group.operations:
        captured = [value for region in op.regions for value in region.captured()]
        for value in (*op.operands, *captured):
            source = fusion.of.get(root_of(value))
            if source is not None and source is not group:
                sources.add(source)
    return sources


def _readers(older: Group, newer: Group, groups: Sequence[Group], fusion: Fusion) -> list[Group]:
    """The groups between both that need the older one, directly or not."""
    readers: list[Group] = []
    for group in groups[groups.index(older) + 1 : groups.index(newer)]:
        if not _sources(group, fusion).isdisjoint([older, *readers]):
            readers.append(group)
    return readers


def _alike(older: Group, newer: Group) -> bool:
    """Whether results of both have the same dimensions, each of the same operand."""
    axes = translation(older, newer)
    if axes is None:
        return False
    older_roles, other = _roles(older.root), _roles(newer.root)
    return all(other[axis] == older_roles[own] for axis, own in axes.items())


def _may_pair(group: Group, tuning: Tuning) -> bool:
    return is_product(group) and group.other is None and may_stay(group.root, tuning)


def _joined_chain(older: Group, newer: Group) -> Group:
    """Both as one chain over the dimensions of the newer one."""
    axes = translation(older, newer)
    assert axes is not None
    back = {own: axis for axis, own in axes.items()}

    def in_newer(way: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if axis is None else back.get(axis) for axis in way)

    maps = {value: in_newer(way) for value, way in older.maps.items()}
    inputs = {(value, in_newer(way)): None for value, way in older.inputs}
    inputs |= {key: None for key in newer.inputs if key[0] not in older.maps}
    return replace(
        newer,
        operations=[newer.root, *older.operations, *newer.operations[1:]],
        maps={**maps, **newer.maps},
        inputs=inputs,
        other=older.root,
        axes=tuple(sorted(axes.items())),
    )


def may_stay(op: Op, tuning: Tuning) -> bool:
    """Whether the right operand of a product may stay in SBUF while rows of the left one pass.

    The left one would leave results whose neighbours in memory lie on partitions: transfers of
    single elements. Fewer columns than the array has leave it idle, fewer rows than pass at once do
    not hide the loads of what stays.
    """
    (rows, _), (columns, deep) = (_sizes(op, side) for side in (0, 1))
    nbytes = deep * columns * op.operands[1].dtype.itemsize
    is_busy = columns >= PARTITIONS and rows >= MOVING_COLUMNS
    return is_busy and nbytes <= tuning.shared_bytes


def _sizes(op: Op, side: int) -> tuple[int, int]:
    """Elements of an operand along what is its own, and tiles along what is contracted."""
    numbers, name = op.attributes["dot_dimension_numbers"], ("lhs", "rhs")[side]
    batch, contracted = (numbers[f"{name}_{kind}_dimensions"] for kind in _BOUND)
    shape = op.operands[side].shape
    free = math.prod(n for d, n in enumerate(shape) if d not in (*batch, *contracted))
    return free, math.ceil(math.prod(shape[d] for d in contracted) / PARTITIONS)


_BOUND = ("batching", "contracting")


def _roles(op: Op) -> list[int]:
    """The role of each dimension of a product's result: 2 of the batch, 0 or 1 of that operand."""
    numbers = op.attributes["dot_dimension_numbers"]
    batch = len(numbers["lhs_batching_dimensions"])
    left = len(op.operands[0].shape) - batch - len(numbers["lhs_contracting_dimensions"])
    return [2] * batch + [0] * left + [1] * (len(op.result.shape) - batch - left)
