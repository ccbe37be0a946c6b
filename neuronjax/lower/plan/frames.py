"""Values that are padded before anybody reads them: they are made within their padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.group.fuse import Group
from neuronjax.lower.operations import is_splat, padding_of, root_of


@dataclass(frozen=True, slots=True)
class Frame:
    """Elements before and after a value in each dimension, and the number that they have."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    number: float


def frames(graph: Graph, groups: Sequence[Group], products: frozenset[str]) -> dict[Value, Frame]:
    """Values of single products, and concatenations, that one operation alone reads, with the
    padding that it wants."""
    readers: defaultdict[Value, list[Op | None]] = defaultdict(list)
    for op in graph.operations:
        captured = [value for region in op.regions for value in region.captured()]
        for value in (*op.operands, *captured):
            readers[value].append(op)
    for value in graph.results:
        readers[value].append(None)
    frames = {}
    for value in _made(groups, products):
        first, *others = readers[value] or [None]
        frame = _frame(first, value) if first is not None and not others else None
        if frame is not None and any((*frame.low, *frame.high)):
            frames[value] = frame
    return frames


def _made(groups: Sequence[Group], products: frozenset[str]) -> Iterator[Value]:
    for group in groups:
        is_single = group.domain is not None and group.inner is None and group.other is None
        if (is_single and group.root.name in products) or group.root.name == "concatenate":
            yield from (value for op in group.operations for value in op.results)


def _frame(op: Op, value: Value) -> Frame | None:
    if op.operands[0] is not value:
        return None
    if op.name == "convolution":
        return _of_convolution(op)
    if op.name != "pad" or any(op.attributes["interior_padding"]):
        return None
    known = root_of(op.operands[1])
    if not is_splat(known) or known.dtype.name not in ("float32", "bfloat16", "float16"):
        return None
    assert known.producer is not None
    number = float(known.producer.attributes["value"].flat[0])
    return _plain(op.attributes["edge_padding_low"], op.attributes["edge_padding_high"], number)


def _of_convolution(op: Op) -> Frame | None:
    if any(int(step) != 1 for step in op.attributes["lhs_dilation"]):
        return None
    return _plain(*padding_of(op), 0.0)


def _plain(low: Sequence[int], high: Sequence[int], number: float) -> Frame | None:
    """The frame of a padding that cuts nothing off; None if it cuts."""
    is_padding = min((*low, *high), default=0) >= 0
    return Frame(tuple(low), tuple(high), number) if is_padding else None
