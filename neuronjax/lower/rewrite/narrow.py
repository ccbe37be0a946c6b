"""Values that are rounded by all who read them are rounded where they are made.

Pooling, concatenation and views move numbers and choose among them. Rounding to nearest keeps
order, so it may come first, and what moves is half as much:

    convert(concatenate(a, max(b, c))) = concatenate(convert(a), max(convert(b), convert(c)))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import Users, number_of, users_of
from neuronjax.lower.rewriter import Writer

_VIEWS = frozenset({"reshape", "transpose", "slice", "reverse"})
_CHOICES = frozenset({"maximum", "minimum"})
_WITH_INFINITIES = frozenset({"bfloat16", "float16"})
"""Types to which rounding keeps the order of all numbers: none becomes NaN."""


def rounded_early(graph: Graph) -> None:
    """Moves conversions to narrower types in front of what only moves numbers; in place."""
    _Change(graph).make()


class _Change:
    """A graph while conversions move."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._demands = _demands(graph)
        self._named = {*graph.results, *_captured(graph)}
        converted = [op for op in graph.operations if op.name == "convert"]
        self._names = {
            op.operands[0]: op.result for op in reversed(converted) if op.result in self._named
        }
        self._narrow: dict[Value, Value] = {}

    def make(self) -> None:
        graph, demands, narrow = self._graph, self._demands, self._narrow
        operations = [
            self._converted(value, demands[value]) for value in graph.parameters if value in demands
        ]
        same: dict[Value, Value] = {}
        for op in graph.operations:
            op.operands = tuple(same.get(value, value) for value in op.operands)
            wanted = demands.get(op.results[0]) if op.results else None
            if op.name == "convert" and op.operands[0] in narrow:
                made = narrow[op.operands[0]]
                if op.result not in self._named:
                    same[op.result] = made
                elif op.result is not made:
                    operations.append(_renamed(op, made))
            elif wanted is None:
                operations.append(op)
            elif _moves(op) and all(value in narrow for value in _sources(op)):
                operations += self._rounded(op, wanted)
            else:
                operations += [op, self._converted(op.result, wanted)]
        graph.operations[:] = operations

    def _converted(self, value: Value, dtype: np.dtype) -> Op:
        """The conversion that makes the narrow version of a value."""
        made = value.producer
        writer = Writer(made.source, made.scope) if made else Writer("", "")
        self._enter(value, writer.convert(value, dtype))
        return writer.operations[0]

    def _rounded(self, op: Op, dtype: np.dtype) -> list[Op]:
        """An operation on numbers that are rounded already."""
        writer = Writer(op.source, op.scope)
        operands = []
        for value in op.operands:
            if value in self._narrow:
                operands.append(self._narrow[value])
            else:  # one number everywhere
                operands.append(writer.constant(number_of(value), value, dtype))
        shape = op.result.shape
        made = writer.add(op.name, *operands, shape=shape, dtype=dtype, **op.attributes)
        self._enter(op.result, made)
        return writer.operations

    def _enter(self, value: Value, made: Value) -> None:
        """Takes note of the narrow version of a value, under the name by which others know it."""
        name = self._names.get(value, made)
        if name is not made:
            assert made.producer is not None
            made.producer.results, name.producer = (name,), made.producer
        self._narrow[value] = name


def _renamed(op: Op, value: Value) -> Op:
    """A conversion whose result was made before."""
    made = Op("reshape", (value,), op.results, {}, (), op.source, None, op.scope)
    op.result.producer = made
    return made


def _demands(graph: Graph) -> dict[Value, np.dtype]:
    """Values that only narrow versions of are wanted, and the type of those.

    Whatever is moved has to be computed here, or arguments would be rounded by kernels of their
    own. Views cost nothing, so those alone are no reason.
    """
    users = users_of(graph)
    stay: set[Op] = set()
    while True:
        wanted = _wanted(graph, users, stay)
        movements = [op for op in graph.operations if _is_movement(op, wanted, stay)]
        whole = [op for op in movements if any(value not in wanted for value in _sources(op))]
        if not whole:
            return _worthwhile(movements, wanted)
        stay.update(whole)


def _captured(graph: Graph) -> Iterator[Value]:
    for op in graph.operations:
        for region in op.regions:
            yield from region.captured()


def _wanted(graph: Graph, users: Users, stay: set[Op]) -> dict[Value, np.dtype]:
    wanted: dict[Value, np.dtype] = {}
    for op in reversed(graph.operations):
        for value in op.results:
            dtype = _agreed(_wish(user, value, wanted, stay) for user in users[value])
            if dtype is not None and op.name != "constant":
                wanted[value] = dtype
    for value in graph.parameters:  # what is only copied can be rounded on the way
        if all(user is not None and user.name == "concatenate" for user in users[value]):
            dtype = _agreed(_wish(user, value, wanted, stay) for user in users[value])
            wanted |= {} if dtype is None else {value: dtype}
    return wanted


def _is_movement(op: Op, wanted: Mapping[Value, np.dtype], stay: set[Op]) -> bool:
    return op not in stay and _moves(op) and op.result in wanted


def _sources(op: Op) -> list[Value]:
    """Operands that are not one number everywhere."""
    return [value for value in op.operands if number_of(value) is None]


def _wish(
    user: Op | None, value: Value, wanted: Mapping[Value, np.dtype], stay: set[Op]
) -> np.dtype | None:
    """The narrower type in which a user wants a value."""
    if user is None:
        return None
    if user.name == "convert":
        narrower = user.result.dtype.itemsize < value.dtype.itemsize
        return user.result.dtype if narrower and _is_float(value) else None
    dtype = wanted.get(user.result) if len(user.results) == 1 else None
    if dtype is None or user in stay or not _moves(user):
        return None
    return dtype if user.name not in _CHOICES or dtype.name in _WITH_INFINITIES else None


def _is_float(value: Value) -> bool:
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"


def _agreed(dtypes: Iterable[np.dtype | None]) -> np.dtype | None:
    first, *others = [*dtypes] or [None]
    return first if all(dtype == first for dtype in others) else None


def _moves(op: Op) -> bool:
    """Whether an operation moves numbers, or chooses among those that are computed elsewhere."""
    if op.name in _CHOICES:
        numbers = [number_of(value) for value in op.operands]
        return all(number is None or np.isinf(number) for number in numbers)
    return op.name == "concatenate" or op.name in _VIEWS


def _worthwhile(movements: Iterable[Op], wanted: Mapping[Value, np.dtype]) -> dict[Value, np.dtype]:
    """The values that are connected with an operation which is more than a view."""
    first: dict[Value, Value] = {value: value for value in wanted}

    def leader(value: Value) -> Value:
        while first[value] is not value:
            value = first[value]
        return value

    gaining: list[Value] = []
    for op in movements:
        for value in _sources(op):
            first[leader(value)] = leader(op.result)
        if op.name not in _VIEWS:
            gaining.append(op.result)
    gains = {leader(value) for value in gaining}
    return {value: dtype for value, dtype in wanted.items() if leader(value) in gains}
