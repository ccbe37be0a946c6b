"""The order in which results of products lie in memory: as those who read them will walk them.

The Tensor engine contracts over partitions. A product that finds the contracted dimensions of an
operand outermost loads it as it is, else through transposes; and the product that makes it can
write either order. Values that one kernel reads and writes side by side have one order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.group.fuse import Group
from neuronjax.lower.operations import is_splat, peel, root_of

Order = tuple[int, ...]
"""Dimensions of a value, the outermost first."""


def orders(graph: Graph, groups: Sequence[Group], products: frozenset[str]) -> dict[Value, Order]:
    """Value -> the order in which its readers walk it, where that is not the order of dimensions.

    `products` names the operations that can write their results in any order.
    """
    orders = _of_transposes(graph)
    orders.update(_Choice(graph, groups, products).orders())
    return orders


def _of_transposes(graph: Graph) -> dict[Value, Order]:
    """Values that all readers see transposed alike."""
    orders: dict[Value, Order | None] = {}
    for op in graph.operations:
        for value in op.operands:
            order = tuple(op.attributes["permutation"]) if op.name == "transpose" else None
            orders[value] = order if orders.get(value, order) == order else None
        for region in op.regions:
            orders.update(dict.fromkeys(region.captured()))
    orders.update(dict.fromkeys(graph.results))
    return {value: order for value, order in orders.items() if order is not None}


@dataclass
class _Choice:
    """Which values products read, and what those prefer; None: the order of dimensions."""

    graph: Graph
    groups: Sequence[Group]
    products: frozenset[str]
    #: What products, or what follows them, may write in any order.
    _made_anyhow: set[Value] = field(default_factory=set)
    #: Value -> another one of the same order.
    _same: dict[Value, Value] = field(default_factory=dict)
    _wanted: defaultdict[Value, set[Order | None]] = field(default_factory=lambda: defaultdict(set))
    #: Value -> dimensions over which rows of it are reduced.
    _rows: defaultdict[Value, set[frozenset[int]]] = field(default_factory=lambda: defaultdict(set))

    def orders(self) -> dict[Value, Order]:
        """Value -> the order in which its product writes it."""
        made = [value for group in self.groups for value in self._unite(group)]
        self._made_anyhow.update(made)
        self._fix()
        for group in self.groups:
            for op in group.operations:
                for value in op.operands:
                    self._read(group, op, value)
        members: defaultdict[Value, list[Value]] = defaultdict(list)
        for value in {**dict.fromkeys(self._wanted), **dict.fromkeys(made)}:
            members[self._first(value)].append(value)
        orders = {first: self._agreed(members[first]) for first in members}
        agreed = {value: orders[self._first(value)] for value in made}
        return {value: order for value, order in agreed.items() if order is not None}

    def _agreed(self, members: Sequence[Value]) -> Order | None:
        """The one order that all readers of some values want."""
        wanted = {order for value in members for order in self._wanted[value]}
        (order, *others) = wanted or {None}
        if others or order is None:
            return None
        inner = [dim for dim in order if members[0].shape[dim] != 1]
        rows = {dims for value in members for dims in self._rows[value]}
        return order if all(set(inner[-len(dims) :]) == dims for dims in rows) else None

    def _is_product(self, group: Group) -> bool:
        return group.domain is not None and group.root.name in self.products

    def _made(self, group: Group) -> list[Value]:
        """Values that a product, or what follows it, may write in any order: attention and pairs of
        products write rows."""
        if not self._is_product(group) or group.inner is not None or group.other is not None:
            return []
        values = [value for op in group.operations for value in op.results]
        return [value for value in values if _is_whole(group, value)]

    def _unite(self, group: Group) -> list[Value]:
        """The values of a product, which are written side by side."""
        values = self._made(group)
        firsts: dict[tuple[int | None, ...], Value] = {}
        for value in values:
            first = firsts.setdefault(group.maps[value], value)
            if first is not value:
                self._same[value] = first
        return values

    def _fix(self) -> None:
        """Results of the graph, and what regions capture, lie in the order of dimensions."""
        fixed = [*self.graph.results, *self.graph.parameters]
        for op in self.graph.operations:
            fixed += [value for region in op.regions for value in region.captured()]
        for value in fixed:
            self._wanted[root_of(value)].add(None)

    def _read(self, group: Group, op: Op, value: Value) -> None:
        base, relation = peel(value)
        if base is not root_of(value):
            self._wanted[root_of(value)].add(None)
        elif self._is_product(group) and op in _products_of(group):
            self._wanted[base].add(_preferred(op, value, base, relation))
        elif self._is_product(group) and group.inner is None:
            self._beside(group, base, relation)
        elif group.domain is not None and group.inner is None and base in _inputs(group):
            self._in_chain(group, base)
        else:
            self._wanted[base].add(None)

    def _beside(self, group: Group, base: Value, relation: Sequence[int | None]) -> None:
        """A value that is read while the results of a product are written."""
        made = [value for value in self._made(group) if group.maps[value] == _identity(value)]
        is_small = is_splat(base) or sum(size != 1 for size in base.shape) < 2
        if base in group.maps or is_small:
            return
        if not made or made[0].shape != base.shape or tuple(relation) != _identity(base):
            self._wanted[base].add(None)
        else:
            self._same[self._first(made[0])] = self._first(base)
            self._wanted[base] |= set() if base in self._made_anyhow else {None}

    def _in_chain(self, group: Group, base: Value) -> None:
        """A value of which a chain reduces rows; in any other chain it lies as it is."""
        ways = [way for value, way in group.inputs if value is base]
        dims = {d for way in ways for d, axis in enumerate(way) if axis in group.reduced}
        is_whole = any(
            group.reduced & {axis for axis in way if axis is not None}
            for way in group.maps.values()
        )
        if not dims or len(ways) != 1 or is_whole:
            self._wanted[base].add(None)
        else:
            self._rows[base].add(frozenset(dims))

    def _first(self, value: Value) -> Value:
        while self._same.get(value, value) is not value:
            value = self._same[value]
        return value


def _is_whole(group: Group, value: Value) -> bool:
    """Whether a value has all dimensions of a group, in whatever order."""
    assert group.domain is not None
    placed = [axis for axis in group.maps.get(value, ()) if axis is not None]
    return sorted(placed) == [axis for axis, size in enumerate(group.domain) if size != 1]


def _inputs(group: Group) -> set[Value]:
    return {value for value, _ in group.inputs}


def _products_of(group: Group) -> list[Op]:
    """The products of a group: two in attention, and in pairs."""
    roots = [part.root for part in (group, group.inner, group.last) if part is not None]
    return roots if group.other is None else [*roots, group.other]


def _identity(value: Value) -> Order | tuple[int | None, ...]:
    return tuple(dim if size != 1 else None for dim, size in enumerate(value.shape))


def _preferred(op: Op, value: Value, base: Value, relation: Sequence[int | None]) -> Order | None:
    """The order in which a product loads an operand without transposes."""
    side = [number for number, operand in enumerate(op.operands) if operand is value]
    if len(side) != 1:
        return None
    batch, contracted = _roles(op, side[0])
    outer = [relation[dim] for dim in (*batch, *contracted)]
    kept = [dim for dim, size in enumerate(base.shape) if size != 1]
    free = [dim for dim in kept if dim not in outer]
    inner = {relation[dim] for dim in contracted}
    if not kept or kept[-1] not in inner or math.prod(base.shape[d] for d in free) < 2:
        return None
    first = [dim for dim in kept if dim in {relation[dim] for dim in batch}]
    second = [dim for dim in kept if dim in inner]
    ones = [dim for dim, size in enumerate(base.shape) if size == 1]
    return (*ones, *first, *second, *free)


def _roles(op: Op, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch and contracted dimensions of an operand."""
    if op.name == "convolution":
        numbers, a = op.attributes["dimension_numbers"], op.attributes
        is_plain = side == 0 and a["feature_group_count"] == a["batch_group_count"] == 1
        return ((), (numbers["input_feature_dimension"],)) if is_plain else ((), ())
    if side > 1 or side in op.attributes.get("chosen_sides", ()):
        return (), ()
    numbers, name = op.attributes["dot_dimension_numbers"], ("lhs", "rhs")[side]
    return (
        tuple(numbers[f"{name}_batching_dimensions"]),
        tuple(numbers[f"{name}_contracting_dimensions"]),
    )
