"""Bounds of values over blocks of a grid: what is known of a mask before anything runs.

A block has a row and a column of the grid; arrays of a `Range` hold one bound for each block, or
one for all blocks of a row or a column. Numbers that nothing is known of are taken to be of
ordinary size, as scores are: at most `ORDINARY`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.hlo.graph import Op, Value

ORDINARY = 10_000.0
"""The greatest magnitude of numbers that programs compute from their arguments."""
_UNDERFLOW = -104.0
"""The exponential of anything smaller is 0 in FP32 and in shorter types."""


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest number in each block."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(low: float, high: float) -> Range:
        """The range that is the same for all blocks."""
        return Range(np.float64(low).reshape(1, 1), np.float64(high).reshape(1, 1))


def unknown(dtype: np.dtype) -> Range:
    """Returns the range of a value of which nothing but its type is known."""
    if dtype == np.bool_:
        return Range.of(0, 1)
    if np.issubdtype(dtype, np.integer):
        return Range.of(-np.inf, np.inf)
    return Range.of(-ORDINARY, ORDINARY)


@dataclass
class Bounds:
    """Finds the ranges of values, each once."""

    _known: dict[tuple[Value, tuple[int, ...]], Range] = field(default_factory=dict)
    #: Keeps the ranges alive whose identity is a key.
    _indices: list[Sequence[Range]] = field(default_factory=list)

    def of(self, value: Value, indices: Sequence[Range]) -> Range:
        """The range of a value's elements at a range of indices in each of its dimensions."""
        key = (value, tuple(map(id, indices)))
        if key not in self._known:
            self._indices.append(indices)
            self._known[key] = self._search(value, indices)
        return self._known[key]

    def _search(self, value: Value, indices: Sequence[Range]) -> Range:
        op = value.producer
        if op is None or len(op.results) != 1 or op.result is not value:
            return unknown(value.dtype)
        if op.name == "constant":
            return _constant(op.attributes["value"], indices)
        if op.name == "iota":
            return indices[op.attributes["iota_dimension"]]
        if op.name in _SEEN:
            inner = _SEEN[op.name](op, indices)
            return unknown(value.dtype) if inner is None else self.of(op.operands[0], inner)
        rule = _RULES.get(op.name)
        if rule is None or any(o.shape not in ((), value.shape) for o in op.operands):
            return unknown(value.dtype)
        ranges = [self.of(o, indices if o.shape else ()) for o in op.operands]
        with np.errstate(all="ignore"):
            bounds = rule(op, *ranges)
        return unknown(value.dtype) if bounds is None else bounds


def _constant(array: np.ndarray, indices: Sequence[Range]) -> Range:
    if array.dtype.kind == "c" or not array.size:
        return unknown(array.dtype)
    if array.size > 1 and any(array.strides):
        axes = [axis for axis, size in enumerate(array.shape) if size > 1]
        if len(axes) > 1:
            return Range.of(float(array.min()), float(array.max()))
        (axis,) = axes
        return _of_parts(array.reshape(-1).astype(np.float64), indices[axis])
    number = float(array.reshape(-1)[0])
    return Range.of(number, number)


def _of_parts(line: np.ndarray, at: Range) -> Range:
    """The least and the greatest of each part of a line of numbers."""
    bounds = np.stack([at.low.ravel(), at.high.ravel() + 1], 1).astype(np.int64)
    padded, ends = np.append(line, line[-1]), bounds.ravel()
    low = np.minimum.reduceat(padded, ends)[::2].reshape(at.low.shape)
    return Range(low, np.maximum.reduceat(padded, ends)[::2].reshape(at.low.shape))


def _broadcast(op: Op, indices: Sequence[Range]) -> list[Range]:
    dims = op.attributes["broadcast_dimensions"]
    return [
        indices[dim] if size != 1 else Range.of(0, 0)
        for dim, size in zip(dims, op.operands[0].shape, strict=True)
    ]


def _reshape(op: Op, indices: Sequence[Range]) -> list[Range] | None:
    source = op.operands[0].shape
    kept = [at for at, size in zip(indices, op.result.shape, strict=True) if size != 1]
    if [size for size in source if size != 1] != [size for size in op.result.shape if size != 1]:
        return None
    following = iter(kept)
    return [next(following) if size != 1 else Range.of(0, 0) for size in source]


def _transpose(op: Op, indices: Sequence[Range]) -> list[Range]:
    order = op.attributes["permutation"]
    return [indices[order.index(axis)] for axis in range(len(order))]


def _slice(op: Op, indices: Sequence[Range]) -> list[Range]:
    starts, steps = op.attributes["start_indices"], op.attributes["strides"]
    return [
        Range(start + step * at.low, start + step * at.high)
        for at, start, step in zip(indices, starts, steps, strict=True)
    ]


_SEEN: Mapping[str, Callable[[Op, Sequence[Range]], list[Range] | None]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "optimization_barrier": lambda op, indices: list(indices),
}
"""Views: the indices of their operand."""


def _corners(function: Callable[[np.ndarray, np.ndarray], np.ndarray], a: Range, b: Range) -> Range:
    """The range of a function that has its extremes at ends of ranges; 0 · ∞ is 0."""
    pairs = [(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    values = [np.nan_to_num(function(x, y), nan=0.0, posinf=np.inf, neginf=-np.inf)
              for x, y in pairs]  # fmt: skip
    low, high = values[0], values[0]
    for value in values[1:]:
        low, high = np.minimum(low, value), np.maximum(high, value)
    return Range(low, high)


def _is_whole(op: Op) -> bool:
    return np.issubdtype(op.result.dtype, np.integer)


def _at_least(low: np.ndarray) -> np.ndarray:
    return np.nan_to_num(low, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def _at_most(high: np.ndarray) -> np.ndarray:
    return np.nan_to_num(high, nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _divide(op: Op, a: Range, b: Range) -> Range:
    """A quotient; 0 divided by an unknown number is 0, as no softmax divides by 0."""
    if _is_whole(op):
        bounds = _corners(lambda x, y: np.trunc(x / y), a, b)
    else:
        bounds = _corners(np.divide, a, b)
    is_zero = (a.low == 0) & (a.high == 0)
    least = unknown(op.result.dtype)
    crosses = (b.low <= 0) & (b.high >= 0)
    return Range(
        np.where(is_zero, 0.0, np.where(crosses, least.low, bounds.low)),
        np.where(is_zero, 0.0, np.where(crosses, least.high, bounds.high)),
    )


def _remainder(op: Op, a: Range, b: Range) -> Range | None:
    """The remainder of integers divided by a positive number."""
    if not _is_whole(op) or not np.all((b.low == b.high) & (b.low > 0)):
        return None
    is_one = (a.low >= 0) & (np.floor(a.low / b.low) == np.floor(a.high / b.low))
    most = b.low - 1
    low = np.where(is_one, np.mod(a.low, b.low), np.where(a.low >= 0, 0, -most))
    high = np.where(is_one, np.mod(a.high, b.low), np.where(a.high <= 0, 0, most))
    return Range(low, high)


def _absolute(op: Op, a: Range) -> Range:
    crosses = (a.low <= 0) & (a.high >= 0)
    low = np.where(crosses, 0.0, np.minimum(abs(a.low), abs(a.high)))
    return Range(low, np.maximum(abs(a.low), abs(a.high)))


def _compare(op: Op, a: Range, b: Range) -> Range:
    direction = op.attributes["comparison_direction"]
    if direction in ("GE", "GT"):
        a, b = b, a
    if direction in ("LE", "GE"):
        return _truth(a.high <= b.low, a.low <= b.high)
    if direction in ("LT", "GT"):
        return _truth(a.high < b.low, a.low < b.high)
    equal = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    may_be = (a.low <= b.high) & (b.low <= a.high)
    return _truth(equal, may_be) if direction == "EQ" else _truth(~may_be, ~equal)


def _truth(surely: np.ndarray, maybe: np.ndarray) -> Range:
    return Range(surely.astype(np.float64), maybe.astype(np.float64))


def _select(op: Op, chosen: Range, a: Range, b: Range) -> Range:
    yes, no = chosen.low == 1, chosen.high == 0
    low = np.where(yes, a.low, np.where(no, b.low, np.minimum(a.low, b.low)))
    return Range(low, np.where(yes, a.high, np.where(no, b.high, np.maximum(a.high, b.high))))


def _convert(op: Op, a: Range) -> Range | None:
    source, dtype = op.operands[0].dtype, op.result.dtype
    if dtype == np.bool_:
        is_zero = (a.low == 0) & (a.high == 0)
        return _truth((a.low > 0) | (a.high < 0), ~is_zero)
    if _is_whole(op) and source != np.bool_ and not np.issubdtype(source, np.integer):
        return Range(np.trunc(a.low), np.trunc(a.high))
    return a


def _logic(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[Op, Range, Range], Range | None]:
    def rule(op: Op, a: Range, b: Range) -> Range | None:
        is_truth = op.result.dtype == np.bool_
        return Range(function(a.low, b.low), function(a.high, b.high)) if is_truth else None

    return rule


def _monotone(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Op, Range], Range]:
    """The rule of a function that never falls."""
    return lambda op, a: Range(function(a.low), function(a.high))


_RULES: Mapping[str, Callable[..., Range | None]] = {
    "abs": _absolute,
    "add": lambda op, a, b: Range(_at_least(a.low + b.low), _at_most(a.high + b.high)),
    "and": _logic(np.minimum),
    "ceil": _monotone(np.ceil),
    "compare": _compare,
    "convert": _convert,
    "divide": _divide,
    "exponential": _monotone(lambda x: np.where(x < _UNDERFLOW, 0.0, np.exp(x))),
    "floor": _monotone(np.floor),
    "maximum": lambda op, a, b: Range(np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
    "minimum": lambda op, a, b: Range(np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    "multiply": lambda op, a, b: _corners(np.multiply, a, b),
    "negate": lambda op, a: Range(-a.high, -a.low),
    "not": lambda op, a: Range(1 - a.high, 1 - a.low) if op.result.dtype == np.bool_ else None,
    "or": _logic(np.maximum),
    "remainder": _remainder,
    "select": _select,
    "sign": _monotone(np.sign),
    "subtract": lambda op, a, b: Range(_at_least(a.low - b.high), _at_most(a.high - b.low)),
}
"""Element-wise operations: the range of the result, from those of the operands."""
