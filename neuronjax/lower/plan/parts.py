"""Values that are parts of others, of a concatenation or of what a loop carries and updates: they
are made in its memory, and nothing is copied."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.group.fuse import Group
from neuronjax.lower.operations import VIEWS, root_of
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.machine.timings import DMA_BEAT_BYTES
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Buffer, Memory


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An operand of a concatenation or a counted update, by its number."""

    op: Op
    number: int


def parts(
    graph: Graph,
    groups: Sequence[Group],
    fixed: AbstractSet[Value],
    placed: AbstractSet[Value],
    homes: Mapping[Value, Value],
    efficient: int,
) -> dict[Value, Part]:
    """Values that can be made within another one.

    `fixed` values lie where others lay before them; `placed` ones have a place of their own, or an
    order or a padding that their readers want. `homes` are values in whose memory a result is
    wanted, with the roots of those results. Other readers of a value should not meet runs of fewer
    than `efficient` bytes; a kernel may write shorter ones, which a copy may turn in blocks.
    """
    readers = Counter(
        root_of(v) for op in graph.operations if op.name not in VIEWS for v in op.operands
    )
    captured = (v for op in graph.operations for region in op.regions for v in region.captured())
    readers.update(root_of(value) for value in captured)
    readers.update(root_of(value) for value in graph.results)
    made = set(_made(groups)) - fixed - placed
    alone = [group.root for group in groups if group.domain is None]
    within_others: dict[Value, Part] = {}
    for op in alone:
        for number in _numbers(op, fixed, homes, readers):
            root = root_of(op.operands[number])
            if root not in made or root in within_others or storage_of(root.dtype).words != 1:
                continue
            view = within(_stand_in(op.result), Part(op, number))
            least = DMA_BEAT_BYTES if readers[root] == 1 else efficient
            if view is not None and _run(view, efficient) >= least:
                within_others[root] = Part(op, number)
    return within_others


def _numbers(
    op: Op, fixed: AbstractSet[Value], homes: Mapping[Value, Value], readers: Mapping[Value, int]
) -> range:
    """The operands of an operation that may be made within its result, before it runs.

    For an update, the memory must be that of what it updates, which nobody else reads.
    """
    if op.name == "concatenate" and op.result not in fixed and not op.result.is_empty:
        return range(len(op.operands))
    if op.name == "counted_update_slice":
        operand, update = op.operands
        is_part = math.prod(update.shape) < math.prod(operand.shape)
        if is_part and homes.get(operand) is op.result and readers[operand] == 1:
            return range(1, 2)
    return range(0)


def within(whole: View, part: Part) -> View | None:
    """The view of the root of an operand in the whole; None: no strides say it."""
    value = part.op.operands[part.number]
    view: View | None = part_of(whole, part)
    while view is not None and value.producer is not None and value is not root_of(value):
        view = before(value.producer, view)
        value = value.producer.operands[0]
    return view


def part_of(whole: View, part: Part) -> View:
    """The view of an operand in the whole."""
    op, shape = part.op, part.op.operands[part.number].shape
    if op.name == "counted_update_slice":
        return whole.part(op.attributes["start_indices"], shape)
    axis = op.attributes["dimension"]
    start = sum(operand.shape[axis] for operand in op.operands[: part.number])
    starts = [start if d == axis else 0 for d in range(len(shape))]
    limits = [a + size for a, size in zip(starts, shape, strict=True)]
    return whole.sliced(starts, limits, [1] * len(starts))


def before(op: Op, view: View) -> View | None:
    """The view of a layout operation's operand if its result is to lie in a view."""
    if op.name == "transpose":
        order = op.attributes["permutation"]
        return view.along([order.index(axis) for axis in range(len(order))])
    if op.name == "reshape":
        return view.reshaped(op.operands[0].shape)
    if op.name == "broadcast_in_dim" and math.prod(op.operands[0].shape) == math.prod(view.shape):
        return view.reshaped(op.operands[0].shape) if _keeps_order(op) else None
    return None


def _keeps_order(op: Op) -> bool:
    """Whether a broadcast only adds dimensions of size 1."""
    axes = op.attributes["broadcast_dimensions"]
    return list(axes) == sorted(axes)


def _made(groups: Sequence[Group]) -> Iterator[Value]:
    """Values that are written with strides: of chains, of products with what follows them, and of
    updates, which begin as copies."""
    for group in groups:
        if group.root.name in ("dynamic_update_slice", "counted_update_slice"):
            yield group.root.result
        if group.domain is not None and group.inner is None and group.other is None:
            yield from (value for op in group.operations for value in op.results)


def _stand_in(value: Value) -> View:
    buffer = Buffer(
        name="whole", memory=Memory.HBM, dtype=storage_of(value.dtype).dtype, shape=value.shape
    )
    return whole_view(buffer, value.shape)


def _run(view: View, alone: int) -> int:
    """Bytes of a view that lie one after the other; of a single element, `alone`."""
    joined = view.coalesced()
    if not joined.strides or joined.strides[-1] != 1:
        return 0 if math.prod(view.shape) > 1 else alone
    return joined.shape[-1] * bytes_of(joined.buffer.dtype)
