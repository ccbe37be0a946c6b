"""Which operations share a kernel.

Operations are taken in order. An element-wise operation or row reduction joins the newest group
that one of its operands comes from, if its dimensions are dimensions of that group's domain; else
it begins a group. What is computed from arguments alone, for a single operation, waits for that
one: the widened bias of a product belongs to the product's group. As groups run in order of their
numbers and only the newest is joined, no cycle can arise. Every other operation is a group of its
own; some of them (products) take element-wise operations on their result in, as their epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain.boxes import is_resident
from neuronjax.lower.operations import (
    VIEWS,
    Map,
    is_constant,
    is_elementwise,
    is_row_reduction,
    peel,
    root_of,
)
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import is_native


@dataclass(eq=False)
class Group:
    """Operations of one kernel. `domain` has the sizes of its dimensions, if it is a chain."""

    number: int
    operations: list[Op]
    domain: list[int] | None = None
    reduced: frozenset[int] = frozenset()
    maps: dict[Value, Map] = field(default_factory=dict)
    #: Values from outside, with every way in which they are walked.
    inputs: dict[tuple[Value, Map], None] = field(default_factory=dict)
    #: Whether row reductions may join.
    takes_reductions: bool = True
    #: Of attention: scores and softmax, the weights among their values, and the last product.
    inner: Group | None = None
    link: Value | None = None
    last: Group | None = None
    #: Of a pair of products: the older one, and the dimension of its results for each own one.
    other: Op | None = None
    axes: tuple[tuple[int, int], ...] = ()

    @property
    def root(self) -> Op:
        return self.operations[0]


def _is_known(value: Value, most: int) -> bool:
    """Whether a value lies in memory before a program runs, or is made before all others."""
    return is_constant(value) or (value.producer is not None and _is_line(value.producer, most))


def _is_line(op: Op, most: int) -> bool:
    """Whether an operation makes few indices."""
    return op.name == "iota" and math.prod(op.result.shape) <= most


@dataclass
class Fusion:
    """Assigns the operations of one graph to groups."""

    epilogues: frozenset[str]
    tuning: Tuning
    groups: list[Group] = field(default_factory=list)
    of: dict[Value, Group] = field(default_factory=dict)
    #: Values of operations that join the group of their user, and how many operations those are.
    waiting: dict[Value, int] = field(default_factory=dict)

    def run(self, graph: Graph) -> list[Group]:
        """The groups, in an order in which they can run."""
        users = _users(graph)
        for op in _early_first(graph.operations, self.tuning.early_elements):
            if op.name in VIEWS or op.name == "constant":
                continue
            if op.results and all(value.is_empty for value in op.results) and not _acts(op):
                continue  # nothing to compute
            if is_elementwise(op):
                count = self._would_wait(op, users)
                if count:
                    self.waiting[op.result] = count
                else:
                    self._chain(op, _identity(op.result.shape), None)
            elif is_row_reduction(op):
                self._reduction(op)
            else:
                self._alone(op)
        return [group for group in self.groups if group.operations]

    def sees_in_place(self, group: Group, older: Group) -> bool:
        """Whether a group sees every value of an older one in place, not through a view.

        A product reads its operands from memory, before the rest of its group begins.
        """
        read = () if group.takes_reductions else group.root.operands
        return not any(self.of.get(root_of(value)) is older for value in read) and all(
            self.of.get(root_of(value)) is not older or peel(value)[0] in older.maps
            for op in group.operations
            for value in op.operands
        )

    def _would_wait(self, op: Op, users: Mapping[Value, Sequence[Op | None]]) -> int:
        """Counts the operations that join an operation's only user with it; 0: it is not to wait.

        Nothing but arguments, and what waits already, decides its result.
        """
        user, *others = users.get(op.result, [None])
        if user is None or others or not (is_elementwise(user) or is_row_reduction(user)):
            return 0
        if is_row_reduction(user) and user.operands[0] is not op.result:
            return 0
        most = self.tuning.early_elements
        roots = [value for value in map(root_of, op.operands) if not _is_known(value, most)]
        computed = (value for value in roots if value in self.of or value.producer is not None)
        if any(value not in self.waiting for value in computed):
            return 0
        count = 1 + sum(self.waiting.get(value, 0) for value in dict.fromkeys(roots))
        return count if count <= self.tuning.taken_operations else 0

    def _new(self) -> Group:
        group = Group(len(self.groups), [])
        self.groups.append(group)
        return group

    def _add(self, group: Group, op: Op) -> None:
        group.operations.append(op)
        for value in op.results:
            self.of[value] = group

    def _alone(self, op: Op) -> None:
        group = self._new()
        self._add(group, op)
        values = (*op.operands, *op.results)
        if op.name in self.epilogues and all(is_native(value.dtype) for value in values):
            shape = op.result.shape
            group.domain = list(shape)
            group.maps[op.result] = _identity(shape)
            group.takes_reductions = False

    def _reduction(self, op: Op) -> None:
        source = op.operands[0]
        shape = source.shape
        kept = [axis for axis in range(len(shape)) if axis not in op.attributes["dimensions"]]
        self._chain(op, _identity(shape), kept)

    def _chain(self, op: Op, own: Map, kept: Sequence[int] | None) -> None:
        """Places an operation over dimensions `own`, all or (a reduction) some of them kept."""
        shape = op.operands[0].shape if kept is not None else op.result.shape
        group, placed = self._joinable(op, shape, kept)
        if group is None:
            group = self._new()
            group.domain = list(shape)
            placed = own
        walked = op.operands[:1] if kept is not None else op.operands
        for operand in walked:
            self._enter(group, operand, placed)
        self._add(group, op)
        for operand in walked:
            self._note(group, operand, placed)
        for operand in op.operands[len(walked) :]:
            self._note(group, operand, ())
        if kept is None:
            group.maps[op.result] = placed
        else:
            group.maps[op.result] = tuple(placed[axis] for axis in kept)
            group.reduced = frozenset(
                axis for dim, axis in enumerate(placed) if axis is not None and dim not in kept
            )

    def _enter(self, group: Group, value: Value, placed: Map) -> None:
        """Takes a value that waits for a user in the group into it."""
        if not self.waiting.pop(value, 0):
            return
        op = value.producer
        assert op is not None
        for operand in op.operands:
            self._enter(group, operand, placed)
            self._note(group, operand, placed)
        self._add(group, op)
        group.maps[value] = placed

    def _note(self, group: Group, operand: Value, placed: Map) -> None:
        base, relation = peel(operand)
        if self.of.get(base) is group and base in group.maps:
            return
        group.inputs[base, through(relation, placed, base)] = None

    def _joinable(
        self, op: Op, shape: tuple[int, ...], kept: Sequence[int] | None
    ) -> tuple[Group | None, Map]:
        newest = max((self._source(operand) for operand in op.operands), default=-1)
        if newest < 0:
            return None, ()
        group = self.groups[newest]
        if group.domain is None or len(group.operations) >= self.tuning.group_operations:
            return None, ()
        for operand in op.operands:
            base, _ = peel(operand)
            if self._source(operand) == newest and base not in group.maps:
                return None, ()  # seen through a view that needs it in memory
        placed = self._placed(group, op, shape, kept is not None)
        if placed is None or not self._fits(group, op, placed, kept):
            return None, ()
        return group, placed

    def _source(self, operand: Value) -> int:
        group = self.of.get(root_of(operand))
        return group.number if group is not None else -1

    def _placed(
        self, group: Group, op: Op, shape: tuple[int, ...], is_reduction: bool
    ) -> Map | None:
        """The dimension of the domain for each dimension; None if they do not agree."""
        assert group.domain is not None
        placed: list[int | None] = [None] * len(shape)
        operands = op.operands[:1] if is_reduction else op.operands
        for operand in operands:
            base, relation = peel(operand)
            inside = base in group.maps and self.of.get(base) is group
            if inside and not _merge(placed, relation, group.maps[base]):
                return None
        for operand in operands:
            base, relation = peel(operand)
            ways = [way for value, way in group.inputs if value is base]
            if len(ways) == 1:
                _merge(placed, relation, ways[0])
        used = [axis for axis in placed if axis is not None]
        if len(set(used)) != len(used):
            return None
        for dim, size in enumerate(shape):
            axis = placed[dim]
            if size == 1:
                placed[dim] = None
            elif axis is None or group.domain[axis] != size:
                return None
        return tuple(placed)

    def _fits(self, group: Group, op: Op, placed: Map, kept: Sequence[int] | None) -> bool:
        assert group.domain is not None
        axes = {axis for axis in placed if axis is not None}
        domain = {axis for axis, size in enumerate(group.domain) if size != 1}
        if kept is None:
            return domain - group.reduced <= axes and self._row_fits(group, op, axes)
        if not group.takes_reductions or axes != domain:
            return False
        reduced = {a for d, a in enumerate(placed) if a is not None and d not in kept}
        if group.reduced and reduced != group.reduced:
            return False
        return self._row_fits(group, op, axes, frozenset(reduced))

    def _row_fits(
        self, group: Group, op: Op, axes: set[int], reduced: frozenset[int] | None = None
    ) -> bool:
        """Long rows pass in chunks: then no tensor may depend on a reduction."""
        assert group.domain is not None
        reduced = group.reduced or reduced or frozenset()
        if not reduced:
            return True
        row = math.prod(group.domain[axis] for axis in reduced)
        if len(reduced) < 3 and is_resident(row, self.tuning.held_bytes, self.tuning):
            return True
        is_tensor = bool(axes & reduced)
        return not is_tensor or not any(
            self._depends_on_reduction(group, operand) for operand in op.operands
        )

    def _depends_on_reduction(self, group: Group, value: Value) -> bool:
        todo = [value]
        seen: set[Value] = set()
        while todo:
            base, _ = peel(todo.pop())
            if base in seen or self.of.get(base) is not group or base.producer is None:
                continue
            seen.add(base)
            if is_row_reduction(base.producer):
                return True
            todo += base.producer.operands
        return False


def _early_first(operations: Sequence[Op], most: int) -> list[Op]:
    """The operations, but small ones that only what is there from the start decides come first:
    a bias that is converted between two operations of a chain does not cut it. Indices come before
    all, as what is made of them may wait for a group of any number."""
    lines = [op for op in operations if _is_line(op, most)]
    early = set(lines)
    for op in operations:
        if is_elementwise(op) and math.prod(op.result.shape) <= most:
            roots = [root_of(operand).producer for operand in op.operands]
            if all(root is None or root.name == "constant" or root in early for root in roots):
                early.add(op)
    return [
        *lines,
        *(op for op in operations if op in early and not _is_line(op, most)),
        *(op for op in operations if op not in early),
    ]


def _users(graph: Graph) -> dict[Value, list[Op | None]]:
    """The operations that use a value as it is; None: a view, a region, or whoever gets results."""
    users: dict[Value, list[Op | None]] = {}
    for op in graph.operations:
        for value in op.operands:
            users.setdefault(value, []).append(None if op.name in VIEWS else op)
        for value in (value for region in op.regions for value in region.captured()):
            users.setdefault(value, []).append(None)
    for value in graph.results:
        users.setdefault(value, []).append(None)
    return users


def _acts(op: Op) -> bool:
    """Whether an operation does something beyond its results."""
    inside = (_acts(operation) for region in op.regions for operation in region.operations)
    return bool(op.attributes.get("has_side_effect")) or any(inside)


def _identity(shape: Sequence[int]) -> Map:
    return tuple(axis if size != 1 else None for axis, size in enumerate(shape))


def _merge(placed: list[int | None], relation: Map, base: Map) -> bool:
    """Adds what an operand says about dimensions; whether it agrees."""
    for dim, axis in enumerate(relation):
        target = None if axis is None else base[axis]
        if target is None:
            continue
        if placed[dim] is None:
            placed[dim] = target
        elif placed[dim] != target:
            return False
    return True


def through(relation: Map, placed: Map, base: Value) -> Map:
    """Dimension of the base -> dimension of the domain."""
    axes: list[int | None] = [None] * len(base.shape)
    for dim, axis in enumerate(relation):
        if axis is not None:
            axes[axis] = placed[dim]
    return tuple(axes)


def outputs(group: Group, uses: dict[Value, list[Op | None]]) -> Iterator[Value]:
    """Values of a chain that others need in memory."""
    inside = set(group.operations)
    for op in group.operations:
        for value in op.results:
            if any(user is None or user not in inside for user in uses.get(value, ())):
                yield value
