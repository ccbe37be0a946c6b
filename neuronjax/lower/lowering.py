"""Per-core StableHLO to a `Program`, before it has addresses and semaphores."""

from __future__ import annotations

from dataclasses import replace

from jaxlib.mlir import ir

from neuronjax.hlo import chlo
from neuronjax.hlo import graph as hlo_graph
from neuronjax.lower import elementwise
from neuronjax.lower.families.expansions import REWRITES
from neuronjax.lower.families.table import EPILOGUES, RULES
from neuronjax.lower.rebuild import on_buffers
from neuronjax.lower.rewrite import rewrite
from neuronjax.lower.scope import Scope, Unit
from neuronjax.lower.storage import storage_of
from neuronjax.lower.view import whole_view
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import (
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


def lower(module: ir.Module, target: Target, ranks: int = 1, name: str = "main") -> Program:
    """The program of one core. Argument i is buffer ``arg{i}``, result i is ``res{i}``.

    Values of no elements, and tokens, have no buffer.

    Raises:
      UnsupportedProgramError: dynamic shapes, or types unknown to PJRT.
    """
    hlo_graph.prepare(module)
    chlo.expand(module, [name for name in (*RULES, *elementwise.RULES) if name.startswith("chlo.")])
    graph = hlo_graph.read(module)
    rewrite(graph, REWRITES)
    unit = Unit(target, rules=RULES, epilogues=EPILOGUES, ranks=ranks)
    scope = Scope(unit, graph)
    for index, value in enumerate(graph.parameters):
        if not value.is_empty:
            buffer = _named(unit, f"arg{index}", value, Kind.ARGUMENT)
            scope.views[value] = whole_view(buffer, value.shape)
    results = {}
    for index, value in enumerate(graph.results):
        if value.is_empty:
            continue
        results[index] = buffer = _named(unit, f"res{index}", value, Kind.RESULT)
        if value not in scope.preferred and value not in graph.parameters:
            scope.preferred[value] = buffer
    views = scope.run()
    for index, buffer in results.items():
        view = views[index]
        assert view is not None
        if view.buffer is not buffer:
            scope.copy(view, whole_view(buffer, graph.results[index].shape))
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


def _named(unit: Unit, name: str, value: hlo_graph.Value, kind: Kind) -> Buffer:
    storage = storage_of(value.dtype)
    shape = value.shape if storage.words == 1 else (*value.shape, storage.words)
    buffer = replace(unit.buffer(shape, storage.dtype, "io", kind), name=name)
    unit.buffers.popitem()
    unit.buffers[name] = buffer
    return buffer


def _inlined(unit: Unit, nodes: list[Node]) -> tuple[tuple[Function, ...], tuple[Node, ...]]:
    """Functions that are called once become kernels in place."""
    functions = {function.name: function for function in unit.functions.values()}
    calls: dict[str, int] = {}

    def count(node: Node) -> None:
        if isinstance(node, Call):
            calls[node.function] = calls.get(node.function, 0) + 1
        elif isinstance(node, Loop):
            for each in node.body:
                count(each)
        elif isinstance(node, While):
            for each in (*node.condition, *node.body):
                count(each)
        elif isinstance(node, If):
            for each in (*node.then, *node.otherwise):
                count(each)

    for node in nodes:
        count(node)

    def change(node: Node) -> Node:
        if isinstance(node, Call) and calls[node.function] == 1:
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

    body = tuple(map(change, nodes))
    shared = tuple(each for each in functions.values() if calls.get(each.name, 0) > 1)
    return shared, body


def _bound(function: Function, call: Call) -> Kernel:
    """The kernel of a function, on the buffers of a call."""
    (kernel,) = function.body
    assert isinstance(kernel, Kernel)
    names = {p.name: b for p, b in zip(function.parameters, call.arguments, strict=True)}
    return on_buffers(kernel, names)
