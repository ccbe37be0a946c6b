"""A graph as a `Program`, before it has addresses and semaphores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neuronjax.hlo import graph as hlo_graph
from neuronjax.lower.filling import spread
from neuronjax.lower.moves import Move, move
from neuronjax.lower.plan.homes import Home
from neuronjax.lower.rates import Rates
from neuronjax.lower.rules import EPILOGUES, RULES
from neuronjax.lower.scope import Rules, Scope
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.unit import Unit
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.rebuild import on_buffers
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import (
    Alias,
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Program,
    Target,
    While,
)


def written(
    graph: hlo_graph.Graph,
    target: Target,
    ranks: int,
    name: str,
    donations: Mapping[int, int | None],
    rates: Rates,
    tuning: Tuning,
) -> Program:
    """The program of a graph: a kernel for each of its groups, in an order that can be run."""
    unit = Unit(target, tuning, rates, ranks=ranks)
    scope = Scope(unit, Rules(RULES, EPILOGUES, spread), graph)
    for index, value in enumerate(graph.parameters):
        if not value.is_empty:
            buffer = _named(unit, f"arg{index}", value, Kind.ARGUMENT)
            scope.views[value] = whole_view(buffer, value.shape)
    places = _places(unit, scope, donations)
    views = scope.run()
    move(
        scope,
        [
            Move(view, places[j], value)
            for j, (view, value) in enumerate(zip(views, graph.results, strict=True))
            if view is not None
        ],
    )
    functions, body = _inlined(unit, scope.nodes)
    return Program(
        name=name,
        target=target,
        body=body,
        buffers=tuple(unit.buffers.values()),
        registers=tuple(unit.registers.values()),
        functions=functions,
        aliases=tuple(unit.aliases),
        ranks=ranks,
    )


def _places(unit: Unit, scope: Scope, donations: Mapping[int, int | None]) -> dict[int, View]:
    """The view in which each result is wanted: of a buffer of its own, or of a donated argument."""
    graph = scope.graph
    pairs = _pairs(graph, donations)
    for index in donations:
        scope.owned.add(f"arg{index}")
    places = {}
    for index, value in enumerate(graph.results):
        if value.is_empty:
            continue
        buffer = _named(unit, f"res{index}", value, Kind.RESULT)
        if index in pairs:
            parameter = graph.parameters[pairs[index]]
            place = scope.views[parameter]
            scope.homes.append(Home(parameter, value, place))
            unit.aliases.append(Alias(buffer.name, place.buffer.name))
        else:
            place = whole_view(buffer, value.shape)
            if value not in scope.preferred and value not in graph.parameters:
                scope.preferred[value] = buffer
        places[index] = place
    return places


def _pairs(graph: hlo_graph.Graph, donations: Mapping[int, int | None]) -> dict[int, int]:
    """Result -> donated argument whose memory it takes: the one that is named, or one alike."""
    pairs = {result: argument for argument, result in donations.items() if result is not None}
    for argument, named in donations.items():
        value = graph.parameters[argument]
        if named is not None or value.is_empty:
            continue
        alike = (j for j, result in enumerate(graph.results) if result.spec == value.spec)
        free = next((j for j in alike if j not in pairs), None)
        if free is not None:
            pairs[free] = argument
    return {
        result: argument
        for result, argument in pairs.items()
        if graph.results[result].spec == graph.parameters[argument].spec
    }


def _named(unit: Unit, name: str, value: hlo_graph.Value, kind: Kind) -> Buffer:
    storage = storage_of(value.dtype)
    shape = value.shape if storage.words == 1 else (*value.shape, storage.words)
    buffer = replace(unit.buffer(shape, storage.dtype, "io", kind), name=name)
    unit.buffers.popitem()
    unit.buffers[name] = buffer
    return buffer


def _inlined(unit: Unit, nodes: list[Node]) -> tuple[tuple[Function, ...], tuple[Node, ...]]:
    """Functions that are called once, or depend on loops around, become kernels in place."""
    functions = {function.name: function for function in unit.functions.values()}
    calls: dict[str, int] = {}

    def count(node: Node) -> None:
        if isinstance(node, Call):
            calls[node.function] = calls.get(node.function, 0) + 1
        elif isinstance(node, Loop):
            for inner in node.body:
                count(inner)
        elif isinstance(node, While):
            for inner in (*node.condition, *node.body):
                count(inner)
        elif isinstance(node, If):
            for inner in (*node.then, *node.otherwise):
                count(inner)

    for node in nodes:
        count(node)

    def change(node: Node) -> Node:
        if isinstance(node, Call) and node.function in inlined:
            return _bound(functions[node.function], node)
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(change, node.body)))
        if isinstance(node, While):
            return replace(
                node,
                condition=tuple(map(change, node.condition)),
                body=tuple(map(change, node.body)),
            )
        if isinstance(node, If):
            return replace(
                node,
                then=tuple(map(change, node.then)),
                otherwise=tuple(map(change, node.otherwise)),
            )
        return node

    inlined = unit.bound | {name for name, count in calls.items() if count == 1}
    body = tuple(map(change, nodes))
    shared = tuple(f for f in functions.values() if f.name in calls and f.name not in inlined)
    return shared, body


def _bound(function: Function, call: Call) -> Kernel:
    """The kernel of a function, on the buffers of a call."""
    (kernel,) = function.body
    assert isinstance(kernel, Kernel)
    names = {p.name: b for p, b in zip(function.parameters, call.arguments, strict=True)}
    return replace(on_buffers(kernel, names), scopes=call.scopes)
