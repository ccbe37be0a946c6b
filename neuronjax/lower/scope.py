"""Lowering one graph: where its values lie, and the kernels that make them.

A rule of a family gets the scope and its operation. It asks for the views of operands, for buffers
of results, and gives the scope a function that writes the kernel; the scope writes it once for all
operations that are alike, as a function of the buffers it works on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.chain.across import write_chain
from neuronjax.lower.chain.balance import balanced
from neuronjax.lower.chain.stepped import steps_of, write_steps
from neuronjax.lower.chain.tile_program import (
    Reference,
)
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.chain.turned import turn_of, write_turned
from neuronjax.lower.epilogue import Epilogue, Rows
from neuronjax.lower.group.absorb import absorbed
from neuronjax.lower.group.attention_groups import merged
from neuronjax.lower.group.fuse import Fusion, Group
from neuronjax.lower.group.group_program import GroupProgram
from neuronjax.lower.group.pairs import paired
from neuronjax.lower.group.widening import widened_late
from neuronjax.lower.operations import VIEWS, is_splat, peel, root_of
from neuronjax.lower.plan.frames import Frame, frames
from neuronjax.lower.plan.homes import Home, settled
from neuronjax.lower.plan.layouts import orders
from neuronjax.lower.plan.order import ordered
from neuronjax.lower.plan.parts import Part, parts, within
from neuronjax.lower.plans import cheapest
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.unit import Unit
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.lower.write.kernel_labels import chain_name, operation_of, scope_of
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import Call, Function, Kernel
from neuronjax.program.program import Node as ProgramNode

Write = Callable[[KernelBuilder, list[View], list[Buffer]], None]
"""Writes a kernel: builder, views of operands, buffers of results."""


@dataclass(frozen=True)
class Rules:
    """The rules by which operations become kernels."""

    operations: Mapping[str, Callable[[Scope, Op], None]]
    """The rules of operations by name; `*` takes what has none."""
    products: Mapping[str, Callable[[Scope, Op, Epilogue], None]]
    """The rules, by name, that take element-wise operations on their results along."""
    fill: Callable[[Scope, View, float, Op], None]
    """Fills what lies around a value, before it is written."""


@dataclass
class Scope:
    """The values of one graph; those from around are found in the outer scope."""

    unit: Unit
    rules: Rules
    graph: Graph
    outer: Scope | None = None
    nodes: list[ProgramNode] = field(default_factory=list)
    views: dict[Value, View] = field(default_factory=dict)
    #: Buffers that may be overwritten once nobody reads them any more.
    owned: set[str] = field(default_factory=set)
    #: Root value -> number of the last group that reads it.
    _last_use: dict[Value, float] = field(default_factory=dict)
    #: Values that are made in a given buffer.
    preferred: dict[Value, Buffer] = field(default_factory=dict)
    #: Places where results are wanted.
    homes: list[Home] = field(default_factory=list)
    #: Values that lie within their padding -> both; what has no padding yet, with its number.
    framed: dict[Value, View] = field(default_factory=dict)
    unfilled: list[tuple[View, float, Op]] = field(default_factory=list)
    #: Values with the order of dimensions in which a copy of them lies.
    turned: dict[tuple[Value, tuple[int, ...]], View] = field(default_factory=dict)
    #: Values that are made within others.
    parts: dict[Value, Part] = field(default_factory=dict)
    _groups: list[Group] = field(default_factory=list)
    #: Number of the group that is being lowered.
    current: int = -1

    @property
    def tuning(self) -> Tuning:
        """The numbers that the compiler is free to choose."""
        return self.unit.tuning

    def run(self) -> list[View | None]:
        """Lowers all operations; the views of the graph's results, None of empty ones."""
        fusion = Fusion(frozenset(self.rules.products), self.tuning)
        groups = paired(merged(fusion.run(self.graph), fusion), fusion)
        groups = widened_late(absorbed(groups, fusion), fusion, self.graph)
        groups = self._groups = ordered(groups, fusion, self.homes, self.graph.results)
        needed = self._needed(groups, fusion)
        self.parts = self._parts()
        self.preferred |= settled(self.homes, self.graph, fusion, self._last_use)
        for group in groups:
            self._group(group, needed)
        return [None if v.is_empty else self.view(v) for v in self.graph.results]

    def _needed(self, groups: list[Group], fusion: Fusion) -> set[Value]:
        """Values that must be in memory, with the last group that reads each."""
        needed: set[Value] = set()
        for group in groups:
            for op in group.operations:
                captured = [value for region in op.regions for value in region.captured()]
                for value in (*op.operands, *captured):
                    base, _ = peel(value)
                    if value in captured or not self._is_inside(group, op, base, fusion):
                        root = root_of(value)
                        needed.add(root)
                        self._last_use[root] = group.number
        for value in self.graph.results:
            needed.add(root_of(value))
            self._last_use[root_of(value)] = math.inf
        return needed

    @staticmethod
    def _is_inside(group: Group, op: Op, base: Value, fusion: Fusion) -> bool:
        """Whether an operation of a group finds a value in a tile.

        What follows the last product of attention finds only that product there: sums of rows, for
        instance, it reads from memory, where the softmax has put them.
        """
        if fusion.of.get(base) is not group or base not in group.maps:
            return False
        if group.inner is None or group.last is None or op in group.inner.operations:
            return True
        return base not in group.inner.maps or (op is group.last.root and base is group.link)

    def dies(self, value: Value, group_number: float) -> bool:
        """Whether the memory of a value may be overwritten by the group of that number."""
        root = root_of(value)
        view = self.views.get(root)
        return (
            view is not None
            and view.buffer.name in self.owned
            and self._last_use.get(root, -1) <= group_number
        )

    def _group(self, group: Group, needed: set[Value]) -> None:
        self.current = group.number
        op = group.root
        if group.inner is not None:
            self._attention(group, needed)
        elif group.other is not None:
            self._pair(group, group.other, needed)
        elif op.name in self.rules.products and group.domain is not None:
            epilogue = self._epilogue(group, op, needed)
            self.rules.products[op.name](self, op, epilogue)
        elif group.domain is not None:
            self._chain(group, needed)
        else:
            rules = self.rules.operations
            rules.get(op.name, rules["*"])(self, op)

    # Views

    def view(self, value: Value) -> View:
        """Returns the view of a value, which must have elements."""
        if value in self.views:
            return self.views[value]
        op = value.producer
        if op is not None and op.name == "constant":
            view = self._constant(op)
        elif op is not None and op.name in VIEWS:
            view = self._seen(op, value)
        elif self.outer is not None:
            return self.outer.view(value)
        else:
            raise AssertionError(f"{value} was not lowered")
        self.views[value] = view
        return view

    def _constant(self, op: Op) -> View:
        array = op.attributes["value"]
        if is_splat(op.result) and array.shape:
            element = whole_view(
                self.unit.constant(array[(slice(0, 1),) * array.ndim].reshape(1)), (1,)
            )
            return replace(element, shape=array.shape, strides=(0,) * array.ndim)
        return whole_view(self.unit.constant(array), array.shape)

    def _seen(self, op: Op, value: Value) -> View:
        index = op.results.index(value)
        source = self.view(op.operands[index])
        a = op.attributes
        if op.name == "broadcast_in_dim":
            return source.broadcast(value.shape, a["broadcast_dimensions"])
        if op.name == "transpose":
            return source.along(a["permutation"])
        if op.name == "slice":
            return source.sliced(a["start_indices"], a["limit_indices"], a["strides"])
        if op.name == "counted_slice":
            return source.part(a["start_indices"], value.shape)
        if op.name == "reverse":
            return source.reversed(a["dimensions"])
        if op.name == "reshape":
            seen = source.reshaped(value.shape)
            return seen or whole_view(self.dense(op.operands[index]), value.shape)
        return source

    def dense(self, value: Value) -> Buffer:
        """A buffer that holds exactly the value, in order; copied there if need be."""
        view = self.view(value)
        if view.is_dense:
            return view.buffer
        buffer = self.new(value, "copy")
        self.copy(view, whole_view(buffer, value.shape), value=value)
        return buffer

    def straight(self, value: Value, axes: Sequence[int | None]) -> View:
        """A value in the order in which a chain walks it: copied, if it is turned block by block.

        `axes` has the dimension of the chain's domain for each of its own.
        """
        view = self.view(value)
        ranks = [-1 if axis is None else axis for axis in axes]
        order = tuple(sorted(range(len(axes)), key=ranks.__getitem__))
        if (value, order) in self.turned:
            return self.turned[value, order]
        shape = tuple(view.shape[d] for d in order)
        stands = replace(view.buffer, shape=shape)
        if (
            turn_of(
                view.along(order),
                whole_view(stands, shape),
                self.unit.target.core,
                self.tuning,
            )
            is None
        ):
            return view
        target = whole_view(self.scratch(shape, view.buffer.dtype, "turned"), shape)
        target = target.along([order.index(d) for d in range(len(order))])
        self.copy(view, target, value=value)
        self.turned[value, order] = target
        return target

    def new(self, value: Value, stem: str = "v") -> Buffer:
        """A buffer for a value that this scope owns."""
        if value in self.preferred:
            return self.preferred[value]
        storage = storage_of(value.dtype)
        shape = value.shape if storage.words == 1 else (*value.shape, storage.words)
        buffer = self.unit.buffer(shape, storage.dtype, stem)
        self.owned.add(buffer.name)
        return buffer

    def scratch(self, shape: Sequence[int], dtype: ElementType, stem: str = "w") -> Buffer:
        """A buffer for something between kernels."""
        buffer = self.unit.buffer(shape, dtype, stem)
        self.owned.add(buffer.name)
        return buffer

    def result(self, value: Value, stem: str = "v") -> Buffer:
        """The dense buffer in which an operation makes a value."""
        buffer = self.new(value, stem)
        self.views[value] = whole_view(buffer, value.shape)
        return buffer

    def ordered(self, value: Value) -> Buffer:
        """The buffer of a value, in the order in which it is read."""
        order = self.orders.get(value) or tuple(range(len(value.shape)))
        frame = self.frames.get(value)
        if value in self.preferred or (frame is None and value not in self.orders):
            return self.result(value)
        low = frame.low if frame else (0,) * len(order)
        high = frame.high if frame else low
        sizes = [sum(sizes_of_axis) for sizes_of_axis in zip(low, value.shape, high, strict=True)]
        shape = tuple(sizes[axis] for axis in order)
        buffer = self.scratch(shape, storage_of(value.dtype).dtype, "v")
        back = [order.index(axis) for axis in range(len(order))]
        whole = whole_view(buffer, shape).along(back)
        limits = [start + size for start, size in zip(low, value.shape, strict=True)]
        self.views[value] = whole.sliced(low, limits, [1] * len(low))
        if frame is not None:
            self.framed[value] = whole
            assert value.producer is not None
            self.unfilled.append((whole, frame.number, value.producer))
        return buffer

    def _parts(self) -> dict[Value, Part]:
        """Values that are made within others, whose memory lives as long as theirs."""
        at_home = {home.result for home in self.homes}
        at_home |= {v for v, buffer in self.preferred.items() if buffer.kind is not Kind.RESULT}
        fixed = {*at_home, *map(root_of, at_home)}
        ordered = {*self.preferred, *self.frames, *self.orders}
        homes = {home.parameter: root_of(home.result) for home in self.homes}
        placed = parts(self.graph, self._groups, fixed, ordered, homes, self.tuning.efficient_run)
        for value, part in placed.items():
            whole = part.op.result
            self._last_use[whole] = max(self._last_use.get(whole, -1), self._last_use[value])
        return placed

    def whole(self, op: Op) -> View:
        """The view of the result of an operation whose operands are made in it.

        An update takes the memory of what it updates. A concatenation is given memory with the
        first of its parts.
        """
        if op.name == "counted_update_slice":
            return self.view(op.operands[0])
        if op.result not in self.views:
            self.ordered(op.result)
        return self.views[op.result]

    def place(self, value: Value, *, in_any_order: bool) -> Buffer:
        """The buffer in which a kernel with strided results makes a value; `views` says where.

        A part of a whole that lies in an order or a frame in which no strides express the part is
        made by itself, and copied there.
        """
        part = self.parts.get(value)
        view = None if part is None else within(self.whole(part.op), part)
        if view is None:
            self.parts.pop(value, None)
            return self.ordered(value) if in_any_order else self.result(value)
        self.views[value] = view
        return view.buffer

    @functools.cached_property
    def frames(self) -> dict[Value, Frame]:
        """Values that are made within their padding."""
        return frames(self.graph, self._groups, frozenset(self.rules.products))

    @functools.cached_property
    def orders(self) -> dict[Value, tuple[int, ...]]:
        """Values that all readers see in another order."""
        return orders(self.graph, self._groups, frozenset(self.rules.products))

    def copy(
        self, source: View, target: View, op: Op | None = None, value: Value | None = None
    ) -> None:
        """A kernel that moves elements from one view to another, in the order of the target.

        Without an operation that asks for it, the line and the scope are those of the value, or
        those of the group that is being lowered.
        """
        order = sorted(range(len(target.shape)), key=lambda axis: -abs(target.strides[axis]))
        source, target = source.along(order), target.along(order)
        turn = turn_of(source, target, self.unit.target.core, self.tuning)
        steps = steps_of(source, target, self.tuning) if turn is None else []

        def write(builder: KernelBuilder, views: list[View], _: list[Buffer]) -> None:
            if turn is not None:
                write_turned(builder, turn, *views)
            elif steps:
                for part in steps_of(views[0], views[1], self.tuning):
                    write_steps(builder, part)
            else:
                builder.emit(DmaCopy(dst=views[1].access(), src=views[0].access()))

        operations = [op] if op else []
        self.kernel("copy", operations, ("copy",), [source, target], [], write, value)

    # Kernels

    def kernel(
        self,
        name: str,
        operations: Sequence[Op],
        key: tuple[Any, ...],
        views: Sequence[View],
        buffers: Sequence[Buffer],
        write: Write | Sequence[Sequence[Write]],
        value: Value | None = None,
    ) -> None:
        """Adds a kernel. `key` says what `write` does beyond the views' strides and types; a kernel
        without operations has the line and the scope of `value`. If there are several ways to write
        it, in rows, the best first, it is the cheapest of the first row in which any fits."""
        self._fill()
        distinct = list(dict.fromkeys([*(view.buffer for view in views), *buffers]))
        number = {buffer: index for index, buffer in enumerate(distinct)}
        origins = operations or self._origin(value)
        sources = tuple(dict.fromkeys(op.source for op in origins))
        full_key = (
            key,
            name,
            tuple((v.shape, v.strides, v.offset, number[v.buffer]) for v in views),
            tuple(number[buffer] for buffer in buffers),
            tuple((buffer.dtype, buffer.shape, buffer.memory) for buffer in distinct),
            tuple(op.name for op in operations),
            sources,
        )
        function = self.unit.functions.get(full_key)
        if function is None:
            parameters = tuple(
                replace(b, name=f"p{index}", kind=Kind.SCRATCH, data=None, address=None)
                for index, b in enumerate(distinct)
            )
            stands = dict(zip(distinct, parameters, strict=True))
            label = self.unit.name(name)

            def made(write: Write) -> Kernel:
                names = tuple(dict.fromkeys(map(operation_of, operations)))
                builder = self.builder(label, names, sources, self.unit.target.lnc)
                write(
                    builder,
                    [replace(view, buffer=stands[view.buffer]) for view in views],
                    [stands[buffer] for buffer in buffers],
                )
                return balanced(builder.kernel(), builder.core, builder.rates, builder.tuning)

            rows = ((write,),) if callable(write) else write
            plans = [[functools.partial(made, way) for way in row] for row in rows]
            kernel = cheapest(
                plans, self.unit.target, self.unit.rates.prices, self.tuning.waiting_share
            )
            function = Function(name=label, parameters=parameters, body=(kernel,))
            self.unit.functions[full_key] = function
            if any(view.offset.terms for view in views):
                self.unit.bound.add(function.name)
        scopes = (scope_of(origins),)
        call = Call(function=function.name, arguments=tuple(distinct), scopes=scopes)
        self.nodes.append(call)

    def builder(
        self, name: str, operations: tuple[str, ...], sources: tuple[str, ...], cores: int = 1
    ) -> KernelBuilder:
        """A builder of a kernel that so many cores may share."""
        core, rates = self.unit.target.core, self.unit.rates
        return KernelBuilder(name, core, self.tuning, rates, cores, operations, sources)

    def _origin(self, value: Value | None) -> Sequence[Op]:
        """The operation to whose account a copy goes that none asks for."""
        if value is not None:
            return [value.producer] if value.producer else []
        return [self._groups[self.current].root] if self.current >= 0 else []

    def inline(self, kernel: Kernel) -> None:
        """Adds a kernel that is written for this place alone."""
        self._fill()
        self.nodes.append(kernel)

    def _fill(self) -> None:
        """Fills values that will lie within padding, before anything is written there."""
        while self.unfilled:
            self.rules.fill(self, *self.unfilled.pop())

    # Chains

    def _chain(self, group: Group, needed: set[Value]) -> None:
        program, views, results = GroupProgram(self, group, group.operations, needed, ()).build()

        def write(
            spreads: bool, slots: int, builder: KernelBuilder, seen: list[View], made: list[Buffer]
        ) -> None:
            buffers = [*(view.buffer for view in seen), *made]
            write_chain(TileEmitter(builder, program, buffers, spreads=spreads, slots=slots))

        several = self.tuning.chain_slots
        plans = [
            [functools.partial(write, spreads, slots)]
            for spreads, slots in ((True, several), (False, several), (False, 1))
        ]
        self.kernel(
            chain_name(group.operations), group.operations, ("chain", program), views, results,
            plans,
        )  # fmt: skip

    def _attention(self, group: Group, needed: set[Value]) -> None:
        inner, last, link = group.inner, group.last, group.link
        assert inner is not None
        assert last is not None
        assert link is not None
        chain = GroupProgram(self, inner, inner.operations[1:], needed, (inner.root.result,))
        made = Epilogue(*chain.build(), tuple(inner.operations))
        reference = chain.references[link]
        assert isinstance(reference, Reference)
        epilogue = self._epilogue(last, last.root, needed)
        read = frozenset(needed.intersection(inner.maps))
        epilogue.rows = Rows(inner.root, made, link, reference, inner.maps, read)
        self.rules.products["attention"](self, last.root, epilogue)

    def _pair(self, group: Group, other: Op, needed: set[Value]) -> None:
        roots = (group.root, other)
        following = [op for op in group.operations if op not in roots]
        given = tuple(op.result for op in roots)
        parts = GroupProgram(self, group, following, needed, given).build()
        made = Epilogue(*parts, tuple(group.operations), other=other, axes=group.axes)
        self.rules.products["pair"](self, group.root, made)

    def _epilogue(self, group: Group, op: Op, needed: set[Value]) -> Epilogue:
        program = GroupProgram(self, group, group.operations[1:], needed, (op.result,))
        return Epilogue(*program.build(), tuple(group.operations))
