"""Loops with a constant trip count, and slices at their counters, as `lax.scan` takes them.

Such a loop has its trip count as the attribute `counted`. Such a slice is a view, not a copy: it
begins at an affine function of loop variables. An update at such a place may be made right there.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import root_of
from neuronjax.lower.trips import Trips, uses_of
from neuronjax.program.affine import Affine, Interval, affine


def with_counted_loops(graph: Graph) -> None:
    """Marks loops with a constant trip count, and slices at their counters; in place."""
    _visit(graph, _Numbers(), itertools.count(1))


def without_counters(graph: Graph) -> None:
    """Makes counters that nothing reads invariant, in loops with a trip count; in place."""
    uses = uses_of(graph)
    for op in graph.operations:
        if "counted" in op.attributes:
            _keep_counters(op, uses)


def _keep_counters(op: Op, uses: Counter[Value]) -> None:
    _, body = op.regions
    inside = uses_of(body)
    results = list(body.results)
    for index, (parameter, result) in enumerate(zip(body.parameters, op.results, strict=True)):
        counts = _step(body, index) is not None and inside[parameter] == inside[results[index]] == 1
        if counts and not uses[result]:
            results[index] = parameter
    body.results = tuple(results)


@dataclass(frozen=True)
class _Numbers:
    """What is known of integers: affine functions of loop variables, and the loops' trip counts."""

    known: Mapping[Value, Affine] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)

    def of(self, value: Value) -> Affine | None:
        """The number that a scalar is; None: nobody knows, or its type does not hold it."""
        if value in self.known:
            return self.known[value]
        op = value.producer
        if op is None or math.prod(value.shape) != 1 or not np.issubdtype(value.dtype, np.integer):
            return None
        number = self._made(op, value)
        return number if number is not None and self.fits(number, value.dtype) else None

    def fits(self, number: Affine, dtype: np.dtype) -> bool:
        """Whether an integer type holds a number in all iterations."""
        limits = np.iinfo(dtype)
        return self._within(number, limits.min, limits.max)

    def constant(self, value: Value) -> int | None:
        """The number of a scalar that is the same in all iterations."""
        number = self.of(value)
        return None if number is None or number.terms else number.base

    def between(self, value: Value, low: int, high: int) -> Affine | None:
        """The number of a scalar, if it never leaves an interval."""
        number = self.of(value)
        return number if number is not None and self._within(number, low, high) else None

    def _within(self, number: Affine, low: int, high: int) -> bool:
        least, greatest = number.interval(self.trips)
        return low <= least and greatest <= high

    def _made(self, op: Op, value: Value) -> Affine | None:
        if op.name == "constant":
            return Affine(int(op.attributes["value"].flat[0]))
        if op.name in _SAME:
            return self.of(op.operands[op.results.index(value)])
        if op.name == "select":
            return self._selected(op)
        if op.name not in (*_ARITHMETIC, "maximum", "minimum"):
            return None
        left, right = (self.of(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        if op.name in _ARITHMETIC:
            return _ARITHMETIC[op.name](left, right)
        greater, less = (right, left) if op.name == "minimum" else (left, right)
        least, greatest = (left + right * -1).interval(self.trips)
        return greater if least >= 0 else less if greatest <= 0 else None

    def _selected(self, op: Op) -> Affine | None:
        """The operand that is chosen in all iterations, as where an index is not negative."""
        choice, chosen, otherwise = op.operands
        compare = choice.producer
        if compare is None or compare.name != "compare":
            return None
        left, right = (self.of(operand) for operand in compare.operands)
        if left is None or right is None:
            return None
        apart = (left + right * -1).interval(self.trips)
        always = _ALWAYS[compare.attributes["comparison_direction"]](apart)
        return None if always is None else self.of(chosen if always else otherwise)


_SAME = frozenset({"reshape", "broadcast_in_dim", "convert", "optimization_barrier"})
_ARITHMETIC: Mapping[str, Callable[[Affine, Affine], Affine | None]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left + right * -1,
    "multiply": lambda left, right: (
        left * right.base if not right.terms else right * left.base if not left.terms else None
    ),
}


def _decided(certain: bool, impossible: bool) -> bool | None:
    return True if certain else False if impossible else None


_ALWAYS: Mapping[str, Callable[[Interval], bool | None]] = {
    "LT": lambda apart: _decided(apart.high < 0, apart.low >= 0),
    "LE": lambda apart: _decided(apart.high <= 0, apart.low > 0),
    "GT": lambda apart: _decided(apart.low > 0, apart.high <= 0),
    "GE": lambda apart: _decided(apart.low >= 0, apart.high < 0),
    "EQ": lambda apart: _decided(apart == (0, 0), apart.low > 0 or apart.high < 0),
    "NE": lambda apart: _decided(apart.low > 0 or apart.high < 0, apart == (0, 0)),
}
"""Direction -> what a comparison gives in all iterations, by left - right; None: it varies."""


def _visit(graph: Graph, numbers: _Numbers, names: Iterator[int], *, is_body: bool = False) -> None:
    """Goes through a graph; `is_body` of a loop, whose results take the place of its parameters."""
    for op in graph.operations:
        if op.name == "while":
            _while(op, numbers, names)
        elif op.name == "dynamic_slice":
            _slice(op, graph if is_body else None, numbers)
        elif op.name == "dynamic_update_slice":
            _update(op, numbers)
        else:
            for region in op.regions:
                _visit(region, numbers, names)


def _while(op: Op, numbers: _Numbers, names: Iterator[int]) -> None:
    condition, body = op.regions
    kept = dict(_kept(op, body, numbers))
    trips = _trips(op, numbers)
    if trips is None:
        _visit(condition, numbers, names)
        _visit(body, replace(numbers, known={**numbers.known, **kept}), names, is_body=True)
        return
    counted = Trips(f"trip_{next(names)}", trips)
    op.attributes["counted"] = counted
    inner = replace(numbers, trips={**numbers.trips, counted.variable: max(1, trips)})
    counters = _counters(op, body, inner, counted.variable)
    _visit(body, replace(inner, known={**numbers.known, **kept, **counters}), names, is_body=True)


def _kept(op: Op, graph: Graph, numbers: _Numbers) -> Iterator[tuple[Value, Affine]]:
    """Numbers that a loop carries and never changes, as parameters of one of its regions."""
    _, body = op.regions
    rows = zip(op.operands, graph.parameters, body.parameters, body.results, strict=True)
    for operand, parameter, before, after in rows:
        if before is after and (number := numbers.of(operand)) is not None:
            yield parameter, number


def _counters(op: Op, body: Graph, numbers: _Numbers, variable: str) -> dict[Value, Affine]:
    """Carried integers that grow by one step in every iteration, and never leave their type."""
    counters = {}
    for index, (operand, parameter) in enumerate(zip(op.operands, body.parameters, strict=True)):
        first, step = numbers.of(operand), _step(body, index)
        if first is not None and step:
            number = first + affine(**{variable: step})
            if numbers.fits(number, parameter.dtype):
                counters[parameter] = number
    return counters


def _slice(op: Op, body: Graph | None, numbers: _Numbers) -> None:
    """Makes a view of a slice that begins at a known place of what the body of its loop, if it is
    in one, does not change."""
    source, *indices = op.operands
    root = root_of(source)
    if body is not None and root in body.parameters and _is_carried(body, root):
        return
    if (starts := _starts(source, op.result, indices, numbers)) is not None:
        op.name, op.operands = "counted_slice", (source,)
        op.attributes = {"start_indices": starts}


def _update(op: Op, numbers: _Numbers) -> None:
    """Marks an update at a known place."""
    operand, update, *indices = op.operands
    if (starts := _starts(operand, update, indices, numbers)) is not None:
        op.name, op.operands = "counted_update_slice", (operand, update)
        op.attributes = {"start_indices": starts}


def _starts(
    whole: Value, part: Value, indices: Sequence[Value], numbers: _Numbers
) -> tuple[Affine, ...] | None:
    """The start of a part, if that is known and never beyond what fits; None: it is not."""
    rows = zip(indices, whole.shape, part.shape, strict=True)
    starts = tuple(numbers.between(index, 0, size - length) for index, size, length in rows)
    known = tuple(start for start in starts if start is not None)
    return known if len(known) == len(starts) else None


def _is_carried(body: Graph, parameter: Value) -> bool:
    """Whether a loop's body returns something else in place of a parameter."""
    return body.results[body.parameters.index(parameter)] is not parameter


def _trips(op: Op, numbers: _Numbers) -> int | None:
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
    index = condition.parameters.index(counter)
    asked = replace(numbers, known={**numbers.known, **dict(_kept(op, condition, numbers))})
    first, last = numbers.constant(op.operands[index]), asked.constant(limit)
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
        number = _Numbers().constant(right) if left is parameter else None
        return None if number is None else -number
    return _Numbers().constant(right if left is parameter else left)
