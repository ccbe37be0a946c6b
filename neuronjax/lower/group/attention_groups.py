"""Finding attention among groups: a product, a softmax of its rows, and a product with the rows.

The three groups become one, in the place of the last: rows of scores stay in SBUF. What else reads
scores or weights, a backward pass for instance, finds them in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain.tiles import is_resident
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import peel, root_of

ROW_BYTES = 36
"""Bytes of SBUF for each key, in the partition of a query: its scores and what becomes of them."""
MAX_WIDTH = 512
"""Most features of queries and of values."""
_TYPES = frozenset({"float32", "bfloat16", "float16"})


def merged(groups: Sequence[Group], fusion: Fusion) -> list[Group]:
    """The groups, with those of attention put together."""
    result = list(groups)
    for last in groups:
        parts = _attention(last, result, fusion)
        if parts is None:
            continue
        first, middle, link = parts
        inner = _joined_chain(first, middle)
        whole = replace(
            last,
            operations=[*inner.operations, *last.operations],
            maps={**inner.maps, **last.maps},
            inner=inner,
            link=link,
            last=replace(last),
        )
        for group in (first, middle):
            result.remove(group)
        result[result.index(last)] = whole
        for op in whole.operations:
            for value in op.results:
                fusion.of[value] = whole
    return result


def _attention(
    last: Group, groups: Sequence[Group], fusion: Fusion
) -> tuple[Group, Group, Value] | None:
    """The groups of scores and of their softmax, and the weights, if `last` multiplies by them."""
    if not is_product(last):
        return None
    for side in (0, 1):
        link, _ = peel(last.root.operands[side])
        middle = fusion.of.get(link)
        if middle is None or middle not in groups or link not in middle.maps:
            continue
        if middle.domain is None or not middle.reduced or middle.inner is not None:
            continue
        first = _scores(middle, fusion)
        if first is None or first not in groups or not is_product(first):
            continue
        whole = _joined_chain(first, middle)
        if _fits(first, whole, last, side, link) and _in_order(first, middle, last, groups, fusion):
            return first, middle, link
    return None


def is_product(group: Group) -> bool:
    op = group.root
    return (
        op.name == "dot_general"
        and group.domain is not None
        and group.inner is None
        and all(value.dtype.name in _TYPES for value in (*op.operands, *op.results))
    )


def _scores(middle: Group, fusion: Fusion) -> Group | None:
    """The group of the one product whose results a softmax takes, dimension by dimension."""
    assert middle.domain is not None
    axes = sum(size != 1 for size in middle.domain)
    for value, way in middle.inputs:
        group = fusion.of.get(value)
        if group is None or value not in group.maps or group is middle:
            continue
        if group.root.name == "dot_general" and sum(axis is not None for axis in way) == axes:
            return group if translation(group, middle) is not None else None
    return None


def translation(first: Group, middle: Group) -> dict[int, int] | None:
    """Axis of the softmax -> axis of the scores; None: they do not agree."""
    assert first.domain is not None
    assert middle.domain is not None
    axes: dict[int, int] = {}
    for value, way in middle.inputs:
        if value not in first.maps:
            continue
        for own, axis in zip(first.maps[value], way, strict=True):
            if (own is None) != (axis is None):
                return None
            if own is not None and axis is not None and axes.setdefault(axis, own) != own:
                return None
    sizes = {axis for axis, size in enumerate(middle.domain) if size != 1}
    targets = {axis for axis, size in enumerate(first.domain) if size != 1}
    if set(axes) != sizes or set(axes.values()) != targets:
        return None
    return axes


def _joined_chain(first: Group, middle: Group) -> Group:
    """Scores and softmax as one chain over the dimensions of the scores."""
    axes = translation(first, middle)
    assert axes is not None
    maps = dict(first.maps)
    for value, placed in middle.maps.items():
        maps[value] = tuple(None if a is None else axes.get(a) for a in placed)
    inputs = dict(first.inputs)
    for value, way in middle.inputs:
        if value not in first.maps:
            translated = tuple(None if a is None else axes.get(a) for a in way)
            inputs[value, translated] = None
    return replace(
        first,
        operations=[*first.operations, *middle.operations],
        maps=maps,
        inputs=inputs,
        reduced=frozenset(axes[axis] for axis in middle.reduced if axis in axes),
    )


def _fits(first: Group, whole: Group, last: Group, side: int, link: Value) -> bool:
    """Whether roles of dimensions agree: keys are contracted, batches are batches, all rows fit."""
    assert whole.domain is not None
    numbers = [op.attributes["dot_dimension_numbers"] for op in (first.root, last.root)]
    name = ("lhs", "rhs")[side]
    _, relation = peel(last.root.operands[side])
    axes = [None if axis is None else whole.maps[link][axis] for axis in relation]
    sizes = last.root.operands[side].shape
    if any((axis is None) != (size == 1) for axis, size in zip(axes, sizes, strict=True)):
        return False
    contracted = {axes[d] for d in numbers[1][f"{name}_contracting_dimensions"]} - {None}
    batch = {axes[d] for d in numbers[1][f"{name}_batching_dimensions"]} - {None}
    varied = {axis for axis, size in enumerate(whole.domain) if size != 1}
    count = len(numbers[0]["lhs_batching_dimensions"])
    left = count + len(first.root.operands[0].shape) - count
    left -= len(numbers[0]["lhs_contracting_dimensions"])
    sides = [set(range(count, left)) & varied, set(range(left, len(whole.domain))) & varied]
    keys = math.prod(whole.domain[axis] for axis in contracted if axis is not None)
    return (
        contracted == set(whole.reduced)
        and batch == set(range(count)) & varied
        and contracted in sides
        and {axis for axis in axes if axis is not None} == varied
        and is_resident(keys, ROW_BYTES)
        and _width(first.root, 0) <= MAX_WIDTH
        and _free(last.root, 1 - side) <= MAX_WIDTH
        and last.root.operands[side].dtype == last.root.operands[1 - side].dtype
    )


def _width(op: Op, side: int) -> int:
    """Contracted elements of a product."""
    name = ("lhs", "rhs")[side]
    dims = op.attributes["dot_dimension_numbers"][f"{name}_contracting_dimensions"]
    return math.prod(op.operands[side].shape[axis] for axis in dims)


def _free(op: Op, side: int) -> int:
    """Elements of an operand that are neither contracted nor of a batch."""
    numbers, name = op.attributes["dot_dimension_numbers"], ("lhs", "rhs")[side]
    bound = (*numbers[f"{name}_contracting_dimensions"], *numbers[f"{name}_batching_dimensions"])
    shape = op.operands[side].shape
    return math.prod(size for axis, size in enumerate(shape) if axis not in bound)


def _in_order(
    first: Group, middle: Group, last: Group, groups: Sequence[Group], fusion: Fusion
) -> bool:
    """Whether scores and softmax may wait until the last product: nobody needs them before."""
    early = {first, middle}
    for op in last.operations:
        others = [value for value in op.operands if peel(value)[0] not in middle.maps]
        if any(fusion.of.get(root_of(value)) in early for value in others):
            return False
    for group in groups:
        if not first.number < group.number < last.number or group is middle:
            continue
        for op in group.operations:
            captured = [value for region in op.regions for value in region.captured()]
            if any(fusion.of.get(root_of(v)) in early for v in (*op.operands, *captured)):
                return False
    return all(
        fusion.of.get(root_of(value)) is not first or peel(value)[0] in first.maps
        for op in middle.operations
        for value in op.operands
    )
