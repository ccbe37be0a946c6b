"""Finding attention among groups: a product, a softmax of its rows, and a product with the rows.

The three groups become one, in the place of the last: rows of scores stay in SBUF. What else reads
scores or weights, a backward pass for instance, finds them in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain.boxes import is_resident
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.operations import is_elementwise, is_row_reduction, peel, root_of
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS

_TYPES = frozenset({"float32", "bfloat16", "float16"})


def merged(groups: Sequence[Group], fusion: Fusion) -> list[Group]:
    """The groups, with those of attention put together."""
    result = list(groups)
    for last in groups:
        parts = _attention(last, result, fusion)
        if parts is None:
            continue
        first, middles, link = parts
        inner = functools.reduce(_joined_chain, middles, first)
        whole = replace(
            last,
            operations=[*inner.operations, *last.operations],
            maps={**inner.maps, **last.maps},
            inner=inner,
            link=link,
            last=replace(last),
        )
        for group in (first, *middles):
            result.remove(group)
        result[result.index(last)] = whole
        for op in whole.operations:
            for value in op.results:
                fusion.of[value] = whole
    return result


def _attention(
    last: Group, groups: Sequence[Group], fusion: Fusion
) -> tuple[Group, list[Group], Value] | None:
    """The groups of scores and of their softmax, and the weights, if `last` multiplies by them."""
    if not is_product(last):
        return None
    for side in (0, 1):
        link, _ = peel(last.root.operands[side])
        middles = _softmax(fusion.of.get(link), fusion)
        if not middles or link not in middles[-1].maps:
            continue
        first = _scores(middles[0], fusion)
        if first is None or first not in groups or not is_product(first):
            continue
        if not all(middle in groups for middle in middles):
            continue
        whole: Group | None = first
        for middle in middles:
            whole = None if whole is None else _with_chain(whole, middle)
        if whole is None or not _fits(first, whole, last, side, link, fusion.tuning):
            continue
        if _in_order(first, middles, last, groups, fusion):
            return first, middles, link
    return None


def _softmax(last: Group | None, fusion: Fusion) -> list[Group]:
    """The groups that make weights of scores, in order: several where rows are long."""
    middles: list[Group] = []
    todo = [last]
    while todo:
        group = todo.pop()
        if group is None or group in middles or not _is_chain(group):
            continue
        middles.append(group)
        todo += [fusion.of.get(value) for value, _ in group.inputs]
    middles.sort(key=lambda group: group.number)
    is_scored = [_scores(group, fusion) is not None for group in middles]
    start = is_scored.index(True) if True in is_scored else len(middles)
    return middles[start:] if any(group.reduced for group in middles[start:]) else []


def _is_chain(group: Group) -> bool:
    """Whether it is nothing but operations on elements and reductions of rows."""
    root = group.root
    return (
        group.domain is not None
        and group.inner is None
        and (is_elementwise(root) or is_row_reduction(root))
    )


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


def _with_chain(first: Group, middle: Group) -> Group | None:
    """Both as one chain, if they agree about dimensions."""
    return None if translation(first, middle) is None else _joined_chain(first, middle)


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
        reduced=first.reduced | {axes[axis] for axis in middle.reduced if axis in axes},
    )


def _fits(first: Group, whole: Group, last: Group, side: int, link: Value, tuning: Tuning) -> bool:
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
    queries = math.prod(whole.domain[axis] for axis in set().union(*sides) - contracted)
    return (
        contracted == set(whole.reduced)
        and batch == set(range(count)) & varied
        and contracted in sides
        and {axis for axis in axes if axis is not None} == varied
        and _has_plan(first.root, last.root, 1 - side, (keys, len(contracted)), queries, tuning)
        and _width(first.root, 0) <= MOVING_COLUMNS
        and _free(last.root, 1 - side) <= MOVING_COLUMNS
        and last.root.operands[side].dtype == last.root.operands[1 - side].dtype
    )


def _has_plan(
    first: Op, last: Op, side: int, keys: tuple[int, int], queries: int, tuning: Tuning
) -> bool:
    """Whether there is a plan that fits, and pays: keys along one axis may pass part by part."""
    count, axes = keys
    if axes == 1:
        return is_resident(count, tuning.score_bytes, tuning) or queries >= tuning.attention_queries
    nbytes = math.ceil(_width(first, 0) / PARTITIONS) * first.operands[0].dtype.itemsize
    nbytes += math.ceil(_free(last, side) * last.operands[side].dtype.itemsize / PARTITIONS)
    return is_resident(count, tuning.score_bytes + nbytes, tuning)


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
    first: Group, middles: list[Group], last: Group, groups: Sequence[Group], fusion: Fusion
) -> bool:
    """Whether scores and softmax may wait until the last product: nobody needs them before."""
    early = {first, *middles}
    made = {value for middle in middles for value in middle.maps}
    for op in last.operations:
        others = [value for value in op.operands if peel(value)[0] not in made]
        if any(fusion.of.get(root_of(value)) in early for value in others):
            return False
    for group in groups:
        if not first.number < group.number < last.number or group in early:
            continue
        for op in group.operations:
            captured = [value for region in op.regions for value in region.captured()]
            if any(fusion.of.get(root_of(v)) in early for v in (*op.operands, *captured)):
                return False
    made |= set(first.maps)
    return all(
        fusion.of.get(root_of(value)) not in early or peel(value)[0] in made
        for middle in middles
        for op in middle.operations
        for value in op.operands
    )
