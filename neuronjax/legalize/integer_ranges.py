"""How large the integers of a program can become, by interval arithmetic.

The ranges are exact except in two cases. Numbers from outside (arguments, floats, other programs)
are taken to be counts, labels or steps: at most ``OUTSIDE``, which FP32 holds exactly. And loops
are analysed once: a counter ends at its bound, a sum grows as often as the loop runs, and any other
number that a loop changes has the range that one iteration can make of any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from neuronjax.formats import EXACT_INTEGERS
from neuronjax.hlo.calls import CallGraph, Path, callee_of, is_carried_unchanged, terminator
from neuronjax.hlo.constants import direction, number, numbers
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import OpOrView, ir
from neuronjax.legalize.emit import element_type, shape

OUTSIDE = EXACT_INTEGERS
_BEYOND = 1 << 70
"""Represents all numbers that no type holds."""
_MAX_DEPTH = 100


class Range(NamedTuple):
    """All integers from ``low`` to ``high``."""

    low: int
    high: int

    def within(self, other: Range) -> bool:
        return other.low <= self.low and self.high <= other.high

    @property
    def bits(self) -> int:
        """Number of bits that hold the magnitude of any of them."""
        return max(_bits(self.low), _bits(self.high))


ANY = Range(-_BEYOND, _BEYOND)
_FLAG = Range(0, 1)


def _bits(number: int) -> int:
    return (~number if number < 0 else number).bit_length()


def _joined(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return Range(min(lows), max(highs))


def limits(element: str) -> Range | None:
    """The range of an integer type; ``None`` for other types."""
    dtype = ELEMENT_TYPES.get(element)
    if element == "i1":
        return _FLAG
    if dtype is None or not element.startswith(("i", "ui")):
        return None
    bits = int(element.lstrip("ui"))
    return (
        Range(0, 2**bits - 1)
        if element[0] == "u"
        else Range(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def _from_outside(element: str) -> Range:
    whole = limits(element) or ANY
    return Range(max(whole.low, -OUTSIDE), min(whole.high, OUTSIDE))


class IntegerRanges:
    """Ranges of the values of a module, cached."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._known: dict[tuple[ir.Value, Path], Range] = {}
        self._depth = 0

    def of(self, value: ir.Value, path: Path) -> Range:
        """The range of a value along a call path, as if its type were unbounded."""
        key = (value, path)
        if key not in self._known:
            outside = _from_outside(element_type(value))
            if self._depth > _MAX_DEPTH:
                return outside
            self._known[key] = ANY  # while a loop is looked at
            self._depth += 1
            try:
                self._known[key] = self._find(value, path, outside)
            finally:
                self._depth -= 1
        return self._known[key]

    def _find(self, value: ir.Value, path: Path, outside: Range) -> Range:
        if isinstance(value, ir.BlockArgument):
            return self._argument(value, path, outside)
        op, index = value.owner, ir.OpResult(value).result_number
        if op.name == "stablehlo.while":
            return self._carried(op, index, path)
        if op.name == "func.call":
            function = self._graph.functions[callee_of(op)]
            return self.of(terminator(function).operands[index], (op, *path))
        if op.name in ("stablehlo.case", "stablehlo.if"):
            branches = range(len(op.regions))
            results = [terminator(op, branch).operands[index] for branch in branches]
            return _joined(self.of(result, path) for result in results)
        rule = RULES.get(op.name)
        if rule is None or limits(element_type(value)) is None:
            return outside
        operands = [self._held(operand, path) for operand in op.operands]
        return _in_type(rule(op, operands), element_type(value))

    def _held(self, value: ir.Value, path: Path) -> Range:
        """The range of a value within the limits of its type."""
        whole, wanted = limits(element_type(value)), self.of(value, path)
        return wanted if whole is None or wanted.within(whole) else whole

    def _argument(self, value: ir.BlockArgument, path: Path, outside: Range) -> Range:
        parent = value.owner.owner.operation
        if parent.name == "stablehlo.while":
            return self._carried(parent, value.arg_number, path)
        if parent.name == "func.func" and path:
            return self.of(path[0].operands[value.arg_number], path[1:])
        return outside

    def _carried(self, loop: OpOrView, index: int, path: Path) -> Range:
        """A value that a loop carries, before, in and after it."""
        start = self.of(loop.operands[index], path)
        if is_carried_unchanged(loop, index):
            return start
        body = (loop.regions[1].blocks[0].arguments[index], path)
        self._known[body] = ANY
        step = self._step(loop, index, path)
        if step is None:
            made = terminator(loop, 1).operands[index]
            self._known[body] = _joined((start, self.of(made, path)))
        else:
            self._known[body] = self._counted(loop, index, path, start, step)
        return self._known[body]

    def _counted(self, loop: OpOrView, index: int, path: Path, start: Range, step: Range) -> Range:
        """A value to which every iteration adds ``step``."""
        bound = self._bound(loop, index, path)
        if bound is not None and step.low > 0:
            return Range(start.low, max(start.high, bound.high + step.high))
        if bound is not None and step.high < 0:
            return Range(min(start.low, bound.low + step.low), start.high)
        trips = self._trips(loop, path)
        return Range(start.low + min(trips * step.low, 0), start.high + max(trips * step.high, 0))

    def _trips(self, loop: OpOrView, path: Path) -> int:
        """How often a loop runs at most, by a counter that its condition bounds."""
        trips = [_BEYOND]
        for index, start in enumerate(loop.operands):
            bound = self._bound(loop, index, path)
            step = None if bound is None else self._step(loop, index, path)
            if bound is None or step is None:
                continue
            if step.low > 0:
                trips.append((bound.high - self.of(start, path).low) // step.low + 1)
            elif step.high < 0:
                trips.append((self.of(start, path).high - bound.low) // -step.high + 1)
        return max(0, min(trips))

    def _step(self, loop: OpOrView, index: int, path: Path) -> Range | None:
        """The number that every iteration adds; ``None`` if it does something else."""
        counter = (loop.regions[1].blocks[0].arguments[index], path)
        made, inside = self._origin(terminator(loop, 1).operands[index], path)
        if isinstance(made.owner, ir.Block) or made.owner.name not in _STEPS:
            return None
        function = _STEPS[made.owner.name]
        first, second = made.owner.operands
        orders = [(first, second)] if function is _subtract else [(first, second), (second, first)]
        for value, added in orders:
            if self._origin(value, inside) == counter:
                return _corners(function)(made.owner, [Range(0, 0), self.of(added, inside)])
        return None

    def _origin(self, value: ir.Value, path: Path) -> tuple[ir.Value, Path]:
        """The value and path that a value stems from, before conversions to the type it has."""
        while True:
            value, path = self._graph.origin(value, path)
            op = value.owner
            if isinstance(op, ir.Block) or op.name != "stablehlo.convert":
                return value, path
            if op.operands[0].type != value.type:
                return value, path
            value = op.operands[0]

    def _bound(self, loop: OpOrView, index: int, path: Path) -> Range | None:
        """The bound with which the condition compares a counter."""
        block = loop.regions[0].blocks[0]
        waiting = [terminator(loop, 0).operands[0]]
        while waiting:
            value = waiting.pop()
            if isinstance(value.owner, ir.Block):
                continue
            op = value.owner
            if op.name == "stablehlo.and":
                waiting += op.operands
            elif op.name == "stablehlo.compare" and direction(op) != "EQ":
                left, right = op.operands
                for counter, bound in ((left, right), (right, left)):
                    if counter == block.arguments[index]:
                        return self.of(bound, path)
        return None


def _add(a: int, b: int) -> int:
    return a + b


def _subtract(a: int, b: int) -> int:
    return a - b


_STEPS = {"stablehlo.add": _add, "stablehlo.subtract": _subtract}


def _in_type(exact: Range, element: str) -> Range:
    """Wraps integers of at most 32 bits; those of 64 bits are left as they are."""
    whole = limits(element) or ANY
    if element in ("i64", "ui64"):
        return Range(max(exact.low, -_BEYOND), min(exact.high, _BEYOND))
    return exact if exact.within(whole) else whole


# What ops make of ranges

Operands = list[Range]


def _corners(function: Callable[[int, int], int]) -> Callable[[ir.OpView, Operands], Range]:
    """The range of a function that is monotonic in both operands."""

    def rule(op: ir.OpView, operands: Operands) -> Range:
        left, right = operands
        corners = [function(a, b) for a in left for b in right]
        return Range(min(corners), max(corners))

    return rule


_SHORTER = {"i64": "i32", "ui64": "ui32"}


def _constant(op: ir.OpView, _: Operands) -> Range:
    """The range of a constant; the limits of 64 bits, as in minima and maxima, count as 32-bit."""
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    values = np.asarray(attribute.get_splat_value().value if attribute.is_splat else attribute)
    if not values.size:
        return _FLAG
    held = Range(int(values.min()), int(values.max()))
    element = element_type(op.results[0])
    whole, short = limits(element), limits(_SHORTER.get(element, element))
    if whole is None or short is None:
        return held
    return Range(
        short.low if held.low == whole.low else held.low,
        short.high if held.high == whole.high else held.high,
    )


def _iota(op: ir.OpView, _: Operands) -> Range:
    return Range(0, max(0, shape(op.results[0])[number(op, "iota_dimension")] - 1))


def _convert(op: ir.OpView, operands: Operands) -> Range:
    element = element_type(op.results[0])
    if limits(element_type(op.operands[0])) is None:
        return _from_outside(element)
    whole = limits(element) or ANY
    return operands[0] if operands[0].within(whole) else whole


def _bitwise(op: ir.OpView, operands: Operands) -> Range:
    bits = max(operand.bits for operand in operands)
    low = -(1 << bits) if min(operand.low for operand in operands) < 0 else 0
    return Range(low, (1 << bits) - 1)


def _and(op: ir.OpView, operands: Operands) -> Range:
    natural = [operand.high for operand in operands if operand.low >= 0]
    return Range(0, min(natural)) if natural else _bitwise(op, operands)


def _not(op: ir.OpView, operands: Operands) -> Range:
    (value,) = operands
    element = element_type(op.results[0])
    ones = (limits(element) or ANY).high if element[0] == "u" or element == "i1" else -1
    return Range(ones - value.high, ones - value.low)


def _shift_left(op: ir.OpView, operands: Operands) -> Range:
    value, amount = operands
    if amount.low < 0 or amount.high >= 64:
        return ANY
    corners = [a << b for a in value for b in amount]
    return Range(min(corners), max(corners))


def _shift_right(op: ir.OpView, operands: Operands) -> Range:
    value, amount = operands
    least = min(max(amount.low, 0), 64)
    return Range(min(0, value.low >> least), max(0, value.high >> least))


def _shift_right_logical(op: ir.OpView, operands: Operands) -> Range:
    return _shift_right(op, operands) if operands[0].low >= 0 else ANY


def _popcnt(op: ir.OpView, operands: Operands) -> Range:
    return Range(0, 64) if operands[0].low >= 0 else ANY


def _divide(op: ir.OpView, operands: Operands) -> Range:
    value, divisor = operands
    largest = max(map(abs, value))
    if value.low >= 0 and divisor.low > 0:
        return Range(value.low // divisor.high, value.high // divisor.low)
    return Range(-largest, largest)


def _remainder(op: ir.OpView, operands: Operands) -> Range:
    value, divisor = operands
    largest = max(*map(abs, divisor), 1) - 1
    return Range(max(-largest, min(value.low, 0)), min(largest, max(value.high, 0)))


def _power(op: ir.OpView, operands: Operands) -> Range:
    base, exponent = operands
    if base.low < 0 or exponent.high > 64:
        return ANY if base != Range(1, 1) else base
    return Range(0, max(base.high ** max(exponent.high, 0), 1))


def _abs(op: ir.OpView, operands: Operands) -> Range:
    (value,) = operands
    low = 0 if value.low <= 0 <= value.high else min(map(abs, value))
    return Range(low, max(map(abs, value)))


def _clamp(op: ir.OpView, operands: Operands) -> Range:
    least, value, greatest = operands
    low = min(max(least.low, value.low), greatest.low)
    return Range(low, max(low, min(max(least.high, value.high), greatest.high)))


def _combined(op: ir.OpView, operands: Operands, count: int) -> Range:
    """``count`` numbers per result, combined by the op in a region. A region with several results
    is taken to select among them."""
    if len(op.results) > 1:
        return _joined(operands)
    values, start = operands
    inner = [inner_op.operation.name for inner_op in op.regions[0].blocks[0].operations][:-1]
    if inner == ["stablehlo.add"]:
        return Range(start.low + count * values.low, start.high + count * values.high)
    if inner == ["stablehlo.multiply"]:
        return ANY if count > 1 and values.bits > 1 else _corners(int.__mul__)(op, operands)
    if inner in (["stablehlo.and"], ["stablehlo.or"], ["stablehlo.xor"]):
        return _bitwise(op, operands)
    return _joined(operands)


def _reduce(op: ir.OpView, operands: Operands) -> Range:
    sizes, axes = shape(op.operands[0]), numbers(op, "dimensions")
    return _combined(op, operands, math.prod(sizes[axis] for axis in axes))


def _reduce_window(op: ir.OpView, operands: Operands) -> Range:
    return _combined(op, operands, math.prod(numbers(op, "window_dimensions")))


def _data(first: int, last: int | None = None) -> Callable[[ir.OpView, Operands], Range]:
    """The union of the ranges of these operands."""
    return lambda op, operands: _joined(operands[first:last])


RULES: dict[str, Callable[[ir.OpView, Operands], Range]] = {
    "stablehlo.abs": _abs,
    "stablehlo.add": _corners(_add),
    "stablehlo.and": _and,
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": lambda op, operands: _FLAG,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.count_leading_zeros": lambda op, operands: ANY,
    "stablehlo.divide": _divide,
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _corners(max),
    "stablehlo.minimum": _corners(min),
    "stablehlo.multiply": _corners(lambda a, b: a * b),
    "stablehlo.negate": lambda op, operands: Range(-operands[0].high, -operands[0].low),
    "stablehlo.not": _not,
    "stablehlo.or": _bitwise,
    "stablehlo.popcnt": _popcnt,
    "stablehlo.power": _power,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.remainder": _remainder,
    "stablehlo.shift_left": _shift_left,
    "stablehlo.shift_right_arithmetic": _shift_right,
    "stablehlo.shift_right_logical": _shift_right_logical,
    "stablehlo.sign": lambda op, operands: Range(-1, 1),
    "stablehlo.subtract": _corners(_subtract),
    "stablehlo.xor": _bitwise,
    # moves
    "stablehlo.all_gather": _data(0),
    "stablehlo.all_to_all": _data(0, 1),
    "stablehlo.broadcast_in_dim": _data(0),
    "stablehlo.collective_permute": _data(0),
    "stablehlo.concatenate": _data(0),
    "stablehlo.dynamic_slice": _data(0, 1),
    "stablehlo.dynamic_update_slice": _data(0, 2),
    "stablehlo.gather": _data(0, 1),
    "stablehlo.pad": _data(0),
    "stablehlo.reshape": _data(0),
    "stablehlo.reverse": _data(0),
    "stablehlo.select": _data(1),
    "stablehlo.slice": _data(0),
    "stablehlo.transpose": _data(0),
}
"""Op -> the range of its results. Leading zeros differ between 32 and 64 bits for every number."""
