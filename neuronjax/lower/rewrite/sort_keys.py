"""Sorts compare keys that are made once for each element, not at every step of the network.

A comparator does much to each side by itself: it makes -0 and 0 equal, and all NaN, and numbers
integers in their total order. That becomes an operand of its own. Operands that nothing compares,
and whose sorted elements nobody reads, are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import is_constant, number_of
from neuronjax.lower.region import SAME, is_emittable
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.sort.sort import longest_row
from neuronjax.lower.trips import uses_of
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import storage_of
from neuronjax.machine.specs import CoreSpec

Expression = tuple[Any, ...]
"""What is computed from one side: equal for both sides of a key."""


def with_sort_keys(graph: Graph, core: CoreSpec, tuning: Tuning) -> None:
    """Gives sorts their keys as operands; in place."""
    uses = uses_of(graph)
    operations: list[Op] = []
    for op in graph.operations:
        operations += _keyed(op, uses, core, tuning) if op.name == "sort" else [op]
    graph.operations[:] = operations


def _keyed(op: Op, uses: Counter[Value], core: CoreSpec, tuning: Tuning) -> list[Op]:
    (comparator,) = op.regions
    if not is_emittable(comparator) or is_constant(comparator.results[0]):
        return [op]
    keys = _Keys(comparator)
    answer = keys.mixed(comparator.results[0])
    if answer is None or not keys.made:
        return [op]
    shape = op.operands[0].shape
    size = shape[op.attributes.get("dimension", -1)]
    kept = [n for n, result in enumerate(op.results) if uses[result] or n in keys.bare]
    pairs = [pair for pair, _ in keys.made.values()]
    pairs += [(comparator.parameters[2 * n], comparator.parameters[2 * n + 1]) for n in kept]
    region = Graph(
        tuple(side for pair in pairs for side in pair), keys.writer.operations, (answer,)
    )
    dtypes = [storage_of(pair[0].dtype).dtype for pair in pairs]
    if size > longest_row(core, tuning, dtypes, region):
        return [op]
    writer = Writer(op.source, op.scope)
    made = [_whole(writer, op, value, ordered) for _, (value, ordered) in keys.made.values()]
    operands = [*made, *(op.operands[n] for n in kept)]
    specs = [value.spec for value in operands]
    values = writer.several("sort", operands, specs, (region,), op.attributes)
    new = writer.operations[-1]
    results = list(new.results)
    for n, value in zip(kept, values[len(made) :], strict=True):
        results[results.index(value)] = op.results[n]
        op.results[n].producer = new
    new.results = tuple(results)
    return writer.operations


@dataclass
class _Keys:
    """What a comparator does to each side by itself, and the rest of it as a new one."""

    comparator: Graph
    writer: Writer = field(default_factory=lambda: Writer("", ""))
    #: What a key is -> its two parameters, and the value of one side that it is.
    made: dict[Expression, tuple[tuple[Value, Value], tuple[Value, bool]]] = field(
        default_factory=dict
    )
    #: Operands that are compared as they are.
    bare: set[int] = field(default_factory=set)
    known: dict[Value, Value] = field(default_factory=dict)
    sides: dict[Value, frozenset[int]] = field(default_factory=dict)

    def side(self, value: Value) -> frozenset[int]:
        """The sides that a value depends on: 0 and 1."""
        if value not in self.sides:
            if value in self.comparator.parameters:
                reached = frozenset({self.comparator.parameters.index(value) % 2})
            else:
                operands = value.producer.operands if value.producer else ()
                reached = frozenset[int]().union(*map(self.side, operands))
            self.sides[value] = reached
        return self.sides[value]

    def mixed(self, value: Value) -> Value | None:
        """A value of both sides in terms of keys; None: it is of one side only."""
        if value in self.known:
            return self.known[value]
        op = value.producer
        if len(self.side(value)) < 2 or op is None:
            return None
        is_ordered = _is_total(op) and all(map(self.side, op.operands))
        operands = [self.operand(operand, is_ordered) for operand in op.operands]
        if any(operand is None for operand in operands):
            return None
        attributes = {**op.attributes, "compare_type": "SIGNED"} if is_ordered else op.attributes
        made = self.writer.add(
            op.name, *(v for v in operands if v is not None), shape=value.shape,
            dtype=value.dtype, **attributes,
        )  # fmt: skip
        self.known[value] = made
        return made

    def operand(self, value: Value, is_ordered: bool) -> Value | None:
        """An operand of what is mixed: a constant, a key, or mixed itself."""
        sides = self.side(value)
        if not sides:
            return self.writer.constant(number_of(value), value)
        if len(sides) == 2:
            return self.mixed(value)
        (side,) = sides
        if value in self.comparator.parameters and not is_ordered:
            self.bare.add(self.comparator.parameters.index(value) // 2)
            return value
        expression = (is_ordered, *self.expression(value))
        if expression not in self.made:
            dtype = _integer(value.dtype) if is_ordered else value.dtype
            left, right = (Value(TensorSpec((), dtype)) for _ in range(2))
            self.made[expression] = ((left, right), (value, is_ordered))
        return self.made[expression][0][side]

    def expression(self, value: Value) -> Expression:
        """What a value of one side is."""
        if value in self.comparator.parameters:
            return ("operand", self.comparator.parameters.index(value) // 2)
        op = value.producer
        assert op is not None
        if is_constant(value):
            return ("constant", value.dtype.name, np.asarray(number_of(value)).tobytes())
        if op.name in SAME:
            return self.expression(op.operands[0])
        attributes = tuple(sorted((name, str(kind)) for name, kind in op.attributes.items()))
        return (op.name, value.dtype.name, attributes, *map(self.expression, op.operands))


def _is_total(op: Op) -> bool:
    """Whether floating-point numbers are compared in the total order of their bits."""
    return op.attributes.get("compare_type") == "TOTALORDER" and elementwise.is_float(
        op.operands[0].dtype
    )


def _integer(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"i{dtype.itemsize}")


def _whole(writer: Writer, op: Op, value: Value, is_ordered: bool) -> Value:
    """A key of all elements: what the comparator of a sort does to one side."""
    (comparator,) = op.regions
    known = {
        parameter: op.operands[index // 2] for index, parameter in enumerate(comparator.parameters)
    }
    made = _of_all(writer, value, known, op.operands[0])
    return _ordered(writer, made) if is_ordered else made


def _of_all(writer: Writer, value: Value, known: dict[Value, Value], like: Value) -> Value:
    if value not in known:
        made = value.producer
        assert made is not None
        if is_constant(value):
            known[value] = writer.constant(number_of(value), like, value.dtype)
        elif made.name in SAME:
            known[value] = _of_all(writer, made.operands[0], known, like)
        else:
            operands = [_of_all(writer, operand, known, like) for operand in made.operands]
            known[value] = writer.add(
                made.name, *operands, shape=like.shape, dtype=value.dtype, **made.attributes
            )
    return known[value]


def _ordered(writer: Writer, value: Value) -> Value:
    """Integers in the total order of floating-point bits: -NaN < -inf < … < inf < NaN."""
    bits = writer.add("bitcast_convert", value, dtype=_integer(value.dtype))
    width = 8 * value.dtype.itemsize
    sign = writer.add("shift_right_arithmetic", bits, writer.constant(width - 1, bits))
    low = writer.add("and", sign, writer.constant((1 << (width - 1)) - 1, bits))
    return writer.add("xor", bits, low)
