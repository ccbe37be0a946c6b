"""Which keys queries see where a mask is known before anything runs, in few blocks of both.

A mask that indices decide alone (causal, a sliding window, blocks) excludes keys for any arguments.
Queries are cut into segments, whose scores are made of the keys between the first and the last that
any of them sees. The weight of every other key is 0: whatever `bounds` takes to be of ordinary size
is far above what the mask puts in place of a score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.hlo.graph import Op
from neuronjax.lower.epilogue import Rows
from neuronjax.lower.operations import reducer
from neuronjax.lower.product.matmul import Sides
from neuronjax.lower.product.steps import Batch, Product
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.bounds import ORDINARY, Bounds, Range
from neuronjax.machine.specs import PARTITIONS

_NEGLIGIBLE = -3 * ORDINARY
"""Scores down to which an unknown number may be the greatest, or its exponential not be 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` blocks of queries, one after the other, and the keys of the first of them.

    Those of each further block begin `step` keys further on.
    """

    first_query: int
    queries: int
    first_key: int
    keys: int
    count: int = 1
    step: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The segments of all queries along dimension `query` of a product, of keys along `key`."""

    query: int
    key: int
    segments: tuple[Segment, ...]

    def sides(self, segment: Segment, sides: Sides) -> Sides:
        """The product of one segment."""
        sizes = {self.query: segment.queries, self.key: segment.keys}
        batches = sides.product.batches
        if segment.count > 1:
            steps = ((self.query, segment.queries), (self.key, segment.step))
            batches = (*batches, Batch(segment.count, steps))
        return replace(sides, product=replace(_resized(sides.product, sizes), batches=batches))

    def further(self, segment: Segment, sides: Sides, dims: Sequence[tuple[int, int]]) -> Sides:
        """The product of its weights; `dims` has the dimension of the first for each own one."""
        sizes = {self.query: segment.queries, self.key: segment.keys}
        own = {dim: sizes[axis] for dim, axis in dims if axis in sizes}
        return replace(sides, product=_resized(sides.product, own))

    def start(self, segment: Segment) -> tuple[tuple[int, int], ...]:
        """Returns the indices in the first product at which a segment begins."""
        return (self.query, segment.first_query), (self.key, segment.first_key)


def _resized(product: Product, sizes: dict[int, int]) -> Product:
    return replace(
        product, sizes=tuple(sizes.get(dim, size) for dim, size in enumerate(product.sizes))
    )


def cut(
    rows: Rows, key: int, queries: Sequence[int], shape: Sequence[int], tuning: Tuning
) -> Cut | None:
    """The segments of scores of a shape, if its mask excludes enough; None: it does not."""
    query = max(queries, key=lambda dim: shape[dim], default=None)
    if query is None or shape[query] <= PARTITIONS or shape[key] <= PARTITIONS:
        return None
    if any(key in rows.maps.get(output, ()) for output in rows.read):
        return None  # what is read of memory must be there
    mask = _Mask(rows, query, key, tuple(shape))
    visible = ~mask.excluded(_blocks(shape[query], rows=True), _blocks(shape[key], rows=False))
    if visible.all() or not visible.any(1).all():
        return None
    first = visible.argmax(1)
    last = visible.shape[1] - visible[:, ::-1].argmax(1)
    if not mask.leaves_something(first * PARTITIONS, np.minimum(last * PARTITIONS, shape[key])):
        return None
    ways = [_segments(first, last, size, shape[query], shape[key]) for size in _sizes(len(first))]
    best = min((_few(way, tuning) for way in ways), key=_work, default=[])
    most = tuning.segment_share * _work([Segment(0, shape[query], 0, shape[key])])
    return Cut(query, key, tuple(best)) if best and _work(best) < most else None


def _sizes(tiles: int) -> Iterator[int]:
    """Tiles of a block, from one to half of all."""
    size = 1
    while 2 * size <= tiles:
        yield size
        size *= 2


def _work(segments: Sequence[Segment]) -> int:
    """Queries times keys, with the time in which a key is loaded into the array, as long as 128
    queries, and that in which a kernel begins and ends, as long as twice as many."""
    load, drain = PARTITIONS, 2 * PARTITIONS
    return sum(
        (segment.count * (segment.queries + load) + drain) * segment.keys for segment in segments
    )


def _segments(
    first: np.ndarray, last: np.ndarray, size: int, queries: int, keys: int
) -> list[Segment]:
    """Blocks of so many tiles, those together that see equally many keys at equal distances."""
    segments: list[Segment] = []
    for start in range(0, len(first), size):
        low = int(first[start : start + size].min()) * PARTITIONS
        high = min(int(last[start : start + size].max()) * PARTITIONS, keys)
        at = start * PARTITIONS
        block = Segment(at, min(size * PARTITIONS, queries - at), low, high - low)
        joined = _joined(segments[-1], block) if segments else None
        segments[-1:] = [joined] if joined else [*segments[-1:], block]
    return segments


def _joined(before: Segment, block: Segment) -> Segment | None:
    """A segment with one more block, if that is like its others."""
    distance = block.first_key - before.first_key
    step = distance if before.count == 1 else before.step
    is_alike = (before.queries, before.keys) == (block.queries, block.keys)
    if not is_alike or distance != before.count * step:
        return None
    return replace(before, count=before.count + 1, step=step)


def _few(segments: Sequence[Segment], tuning: Tuning) -> list[Segment]:
    """Neighbours are put together, where that adds least, until there are few."""
    few = list(segments)
    while len(few) > tuning.segments:
        pairs = [_both(*pair) for pair in itertools.pairwise(few)]
        added = [_work([pair]) - _work(few[at : at + 2]) for at, pair in enumerate(pairs)]
        at = added.index(min(added))
        few[at : at + 2] = [pairs[at]]
    return few


def _both(first: Segment, second: Segment) -> Segment:
    """All queries of two neighbours, and all keys that any of them sees."""
    starts = [
        segment.first_key + n * segment.step
        for segment in (first, second)
        for n in (0, segment.count - 1)
    ]
    ends = [start + keys for start, keys in zip(
        starts, (first.keys, first.keys, second.keys, second.keys), strict=True)]  # fmt: skip
    queries = first.count * first.queries + second.count * second.queries
    return Segment(first.first_query, queries, min(starts), max(ends) - min(starts))


def _blocks(size: int, *, rows: bool) -> Range:
    low = np.arange(0, size, PARTITIONS, dtype=np.float64)
    high = np.minimum(low + PARTITIONS, size) - 1
    shape = (-1, 1) if rows else (1, -1)
    return Range(low.reshape(shape), high.reshape(shape))


@dataclass(frozen=True)
class _Mask:
    """The knowledge of the weights, and of what rows are reduced to."""

    rows: Rows
    query: int
    key: int
    shape: tuple[int, ...]

    def excluded(self, queries: Range, keys: Range) -> np.ndarray:
        """Blocks in which all weights are 0 and nothing adds to a reduction."""
        bounds, indices = Bounds(), self._indices(queries, keys)
        link = self.rows.value
        weights = bounds.of(link, [self._index(indices, axis) for axis in self.rows.placed])
        result = (weights.low == 0) & (weights.high == 0)
        for op, where in self._reductions(indices):
            part = bounds.of(op.operands[0], where)
            if reducer(op) == "maximum":
                result = result & (part.high <= _NEGLIGIBLE)
            else:
                is_zero = (part.low == 0) & (part.high == 0)
                result = result & is_zero & (reducer(op) == "add")
        return np.broadcast_to(result, (queries.low.size, keys.low.size))

    def leaves_something(self, first: np.ndarray, last: np.ndarray) -> bool:
        """Whether every query surely sees one of the keys between those, given for each tile."""
        line = np.arange(self.shape[self.query], dtype=np.float64).reshape(-1, 1)
        tile = line.astype(int) // PARTITIONS
        low, high = first[tile].astype(float), last[tile] - 1.0
        longer = self.shape[self.key] - self.shape[self.query]
        seen = np.zeros(line.shape, bool)
        for key in (line, line + longer, low, high, np.floor((low + high) / 2)):
            at = np.clip(key, low, high)
            indices = self._indices(Range(line, line), Range(at, at))
            tops = [op_and_where for op_and_where in self._reductions(indices)
                    if reducer(op_and_where[0]) == "maximum"]  # fmt: skip
            if not tops:
                return False
            bounds = Bounds()
            for op, where in tops:
                seen = seen | (bounds.of(op.operands[0], where).low >= -ORDINARY)
        return bool(seen.all())

    def _reductions(self, indices: dict[int, Range]) -> Iterator[tuple[Op, list[Range]]]:
        for op in self.rows.epilogue.operations:
            if op.name != "reduce":
                continue
            kept, reduced = iter(self.rows.maps[op.result]), op.attributes["dimensions"]
            axes = (
                (self.key if size != 1 else None) if axis in reduced else next(kept)
                for axis, size in enumerate(op.operands[0].shape)
            )
            yield op, [self._index(indices, axis) for axis in axes]

    def _indices(self, queries: Range, keys: Range) -> dict[int, Range]:
        indices = {dim: Range.of(0, size - 1) for dim, size in enumerate(self.shape)}
        return {**indices, self.query: queries, self.key: keys}

    @staticmethod
    def _index(indices: dict[int, Range], axis: int | None) -> Range:
        return Range.of(0, 0) if axis is None else indices[axis]
