"""How often a loop runs, where that is known beforehand."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value


def trip_count(op: Op) -> int | None:
    """How often a loop runs that counts one of its values to a constant; else None."""
    condition, body = op.regions
    (answer,) = condition.results
    compare = answer.producer
    if compare is None or compare.name != "compare":
        return None
    direction = compare.attributes["comparison_direction"]
    counter, limit = compare.operands
    if counter not in condition.parameters:
        counter, limit, direction = limit, counter, _MIRRORED.get(direction, "")
    if counter not in condition.parameters or direction not in _COUNTS:
        return None
    known = _Numbers(op, condition)
    index = condition.parameters.index(counter)
    first, last = known.number(op.operands[index]), known.number(limit)
    step = _step(body, index)
    if first is None or last is None or step is None:
        return None
    return _COUNTS[direction](first, last, step)


def _upwards(first: int, last: int, step: int) -> int | None:
    return max(0, -((first - last) // step)) if step > 0 else None


def _downwards(first: int, last: int, step: int) -> int | None:
    return max(0, -((last - first) // -step)) if step < 0 else None


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_COUNTS: Mapping[str, Callable[[int, int, int], int | None]] = {
    "LT": _upwards,
    "LE": lambda first, last, step: _upwards(first, last + 1, step),
    "GT": _downwards,
    "GE": lambda first, last, step: _downwards(first, last - 1, step),
}
"""Condition -> trips of a counter from `first` by `step`, while it compares so with `last`."""


def _step(body: Graph, index: int) -> int | None:
    """What a body adds to one of its values, if it is the same each time."""
    parameter, change = body.parameters[index], body.results[index].producer
    if change is None or change.name not in ("add", "subtract") or parameter not in change.operands:
        return None
    left, right = change.operands
    if change.name == "subtract":
        number = _Numbers().number(right) if left is parameter else None
        return None if number is None else -number
    return _Numbers().number(right if left is parameter else left)


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max,
    "minimum": min,
}  # fmt: skip
_SAME = frozenset({"reshape", "broadcast_in_dim", "convert", "optimization_barrier"})


@dataclass
class _Numbers:
    """Numbers that are known beforehand: constants, what follows from them, what a loop keeps."""

    loop: Op | None = None
    condition: Graph | None = None

    def number(self, value: Value) -> int | None:
        """The number that a scalar has; None: nobody knows."""
        if self.condition is not None and value in self.condition.parameters:
            return self._kept(self.condition.parameters.index(value))
        op = value.producer
        if op is None or math.prod(value.shape) != 1:
            return None
        if op.name == "constant":
            return int(op.attributes["value"].flat[0])
        if op.name in _SAME and np.issubdtype(op.operands[0].dtype, np.integer):
            return self.number(op.operands[op.results.index(value)])
        if op.name not in _ARITHMETIC or not np.issubdtype(value.dtype, np.integer):
            return None
        left, right = (self.number(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        number, limits = _ARITHMETIC[op.name](left, right), np.iinfo(value.dtype)
        return number if limits.min <= number <= limits.max else None

    def _kept(self, index: int) -> int | None:
        assert self.loop is not None
        _, body = self.loop.regions
        if body.results[index] is not body.parameters[index]:
            return None
        return self.number(self.loop.operands[index])
