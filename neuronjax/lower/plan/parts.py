"""Values that are parts of a concatenation: they are made in its memory, and nothing is copied."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.group.fuse import Group
from neuronjax.lower.operations import root_of
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Buffer, Memory

_RUN_BYTES = 512
"""Shorter runs take transfers as long as this. Other readers of a value should not meet them."""
_SHORT_BYTES = 64
"""Runs from which on a kernel writes them; shorter ones a copy may turn in blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An operand of a concatenation, by its number."""

    concatenation: Op
    number: int


def parts(
    graph: Graph,
    groups: Sequence[Group],
    fixed: AbstractSet[Value],
    placed: AbstractSet[Value],
) -> dict[Value, Part]:
    """Values that can be made within a concatenation.

    `fixed` values lie where others lay before them; `placed` ones have a place of their own, or an
    order or a padding that their readers want.
    """
    readers = Counter(root_of(v) for op in graph.operations for v in op.operands)
    captured = (v for op in graph.operations for region in op.regions for v in region.captured())
    readers.update(root_of(value) for value in captured)
    readers.update(root_of(value) for value in graph.results)
    made = set(_made(groups)) - fixed - placed
    alone = [group.root for group in groups if group.domain is None]
    within_others: dict[Value, Part] = {}
    for op in alone:
        if op.name != "concatenate" or op.result in fixed or op.result.is_empty:
            continue
        for number, operand in enumerate(op.operands):
            root = root_of(operand)
            if root not in made or root in within_others or storage_of(root.dtype).words != 1:
                continue
            view = within(_stand_in(op.result), Part(op, number))
            least = _SHORT_BYTES if readers[root] == 1 else _RUN_BYTES
            if view is not None and _run(view) >= least:
                within_others[root] = Part(op, number)
    return within_others


def within(whole: View, part: Part) -> View | None:
    """Where the root of an operand lies in its concatenation; None: no strides say it."""
    value = part.concatenation.operands[part.number]
    view: View | None = part_of(whole, part)
    while view is not None and value.producer is not None and value is not root_of(value):
        view = before(value.producer, view)
        value = value.producer.operands[0]
    return view


def part_of(whole: View, part: Part) -> View:
    """Where an operand lies in its concatenation."""
    op, axis = part.concatenation, part.concatenation.attributes["dimension"]
    shape = op.operands[part.number].shape
    start = sum(operand.shape[axis] for operand in op.operands[: part.number])
    starts = [start if d == axis else 0 for d in range(len(shape))]
    limits = [a + size for a, size in zip(starts, shape, strict=True)]
    return whole.sliced(starts, limits, [1] * len(starts))


def before(op: Op, view: View) -> View | None:
    """Where the operand of a layout operation lies if its result is to lie in a view."""
    if op.name == "transpose":
        order = op.attributes["permutation"]
        return view.transposed([order.index(axis) for axis in range(len(order))])
    if op.name == "reshape":
        return view.reshaped(op.operands[0].shape)
    return None


def _made(groups: Sequence[Group]) -> Iterator[Value]:
    """Values of chains, and of products with what follows them: they are written with strides."""
    for group in groups:
        if group.domain is not None and group.inner is None and group.other is None:
            yield from (value for op in group.operations for value in op.results)


def _stand_in(value: Value) -> View:
    buffer = Buffer(
        name="whole", memory=Memory.HBM, dtype=storage_of(value.dtype).dtype, shape=value.shape
    )
    return whole_view(buffer, value.shape)


def _run(view: View) -> int:
    """Bytes of a view that lie one after the other."""
    joined = view.coalesced()
    if not joined.strides or joined.strides[-1] != 1:
        return 0 if math.prod(view.shape) > 1 else _RUN_BYTES
    return joined.shape[-1] * bytes_of(joined.buffer.dtype)
