"""`while`, `case` and `if`: bodies are lowered as graphs of their own.

What a loop carries has buffers that keep their place; a body's results are copied there unless they
were made there.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.filling import filled
from neuronjax.lower.moves import Move, is_same, move
from neuronjax.lower.operations import root_of
from neuronjax.lower.plan.homes import Home
from neuronjax.lower.rewriter import IS_USUAL
from neuronjax.lower.scope import Scope
from neuronjax.lower.trips import Trips, is_made_whole
from neuronjax.lower.values.view import View, whole_view
from neuronjax.program.control import RegisterArithmetic, RegisterLoad
from neuronjax.program.operand import Immediate, Register
from neuronjax.program.operators import AluOp
from neuronjax.program.program import If, Kernel, Loop, Node, While


def while_(scope: Scope, op: Op) -> None:
    """A loop that asks its condition first; one that counts to a constant asks nothing."""
    condition, body = op.regions
    carried = _carry(scope, op, body)
    inner = _inner(scope, body, carried)
    inner.homes = [
        Home(parameter, value, place)
        for parameter, value, place in zip(body.parameters, body.results, carried, strict=True)
        if place is not None and value is not parameter
    ]
    _return(inner, body, inner.run(), carried)
    counted: Trips | None = op.attributes.get("counted")
    if counted is not None:
        if counted.count:
            scope.nodes.append(
                Loop(variable=counted.variable, trips=counted.count, body=tuple(inner.nodes))
            )
    else:
        asked = _inner(scope, condition, carried)
        (answer,) = asked.run()
        assert answer is not None
        register = scope.unit.register(1, "going")
        asked.inline(load(scope, answer, register, op))
        scope.nodes.append(
            While(condition=tuple(asked.nodes), register=register, body=tuple(inner.nodes))
        )
    for result, view in zip(op.results, carried, strict=True):
        if view is not None:
            scope.views[result] = view


def load(scope: Scope, view: View, register: Register, op: Op) -> Kernel:
    """A kernel that loads one element into a register."""
    builder = scope.builder(scope.unit.name("load"), (op.name,), (op.source,))
    builder.emit(RegisterLoad(dst=register, src=view.access()))
    return builder.kernel()


def _carry(scope: Scope, op: Op, body: Graph) -> list[View | None]:
    """The views of the loop's values: what never changes stays, what changes gets a buffer."""
    carried: list[View | None] = []
    taken: set[str] = set()
    captured = {root_of(value) for region in op.regions for value in region.captured()}
    for index, value in enumerate(op.operands):
        if value.is_empty:
            carried.append(None)
            continue
        view = scope.view(value)
        if body.results[index] is body.parameters[index]:
            _share(scope, value)
            carried.append(view)
            continue
        free = view.is_dense and scope.dies(value, scope.current) and view.buffer.name not in taken
        once = sum(root_of(operand) is root_of(value) for operand in op.operands) == 1
        if not (free and once and root_of(value) not in captured):
            target = whole_view(scope.new(op.results[index], "carry"), value.shape)
            if "counted" in op.attributes and is_made_whole(op, index):
                pass  # what it begins with is never seen
            elif not filled(scope, target, value, op):
                scope.copy(view, target, op)
            view = target
        taken.add(view.buffer.name)
        carried.append(view)
    return carried


def _share(scope: Scope, value: Value) -> None:
    """What a loop keeps is seen as its result too: no longer may either be overwritten."""
    view = scope.view(value)
    if not scope.dies(value, scope.current):
        scope.owned.discard(view.buffer.name)


def _inner(scope: Scope, graph: Graph, views: Sequence[View | None]) -> Scope:
    inner = Scope(scope.unit, scope.rules, graph, scope)
    for parameter, result, view in zip(graph.parameters, _padded(graph), views, strict=True):
        if view is None:
            continue
        inner.views[parameter] = view
        if result is not parameter:
            inner.owned.add(view.buffer.name)
    return inner


def _padded(graph: Graph) -> tuple[Value | None, ...]:
    """The results of a body, one for each parameter; a condition has others."""
    same = len(graph.results) == len(graph.parameters) and all(
        r.spec == p.spec for r, p in zip(graph.results, graph.parameters, strict=True)
    )
    return graph.results if same else graph.parameters


def _return(
    inner: Scope, body: Graph, results: Sequence[View | None], carried: Sequence[View | None]
) -> None:
    """Copies results to where the next iteration looks for them, all at once in effect."""
    rows = zip(body.parameters, body.results, results, carried, strict=True)
    move(
        inner,
        [
            Move(view, home, value)
            for parameter, value, view, home in rows
            if home is not None and view is not None and value is not parameter
        ],
    )


def case(scope: Scope, op: Op) -> None:
    """The branch of an index; the last one of an index out of range."""
    index = scope.view(op.operands[0])
    branches = _branches(scope, op)
    register = scope.unit.register(None, "branch")
    scope.inline(load(scope, index, register, op))
    scope.nodes += _choose(scope, op, register, branches)


def _choose(
    scope: Scope, op: Op, register: Register, branches: list[list[Node]], first: int = 0
) -> list[Node]:
    if len(branches) == 1:
        return branches[0]
    chosen = scope.unit.register(1, "chosen")
    builder = scope.builder(scope.unit.name("choose"), (op.name,), (op.source,))
    builder.emit(
        RegisterArithmetic(dst=chosen, op=AluOp.EQUAL, left=register, right=Immediate(first))
    )
    rest = _choose(scope, op, register, branches[1:], first + 1)
    return [
        builder.kernel(),
        If(register=chosen, then=tuple(branches[0]), otherwise=tuple(rest)),
    ]


def if_(scope: Scope, op: Op) -> None:
    """The first branch of a true predicate, else the second."""
    predicate = scope.view(op.operands[0])
    then, otherwise = _branches(scope, op)
    register = scope.unit.register(1, "chosen")
    scope.inline(load(scope, predicate, register, op))
    is_usual = bool(op.attributes.get(IS_USUAL, False))
    scope.nodes.append(
        If(register=register, then=tuple(then), otherwise=tuple(otherwise), is_usual=is_usual)
    )


def _branches(scope: Scope, op: Op) -> list[list[Node]]:
    """The nodes of each branch, which leave the results in the same places."""
    targets = [
        None if value.is_empty else whole_view(scope.result(value), value.shape)
        for value in op.results
    ]
    return [_branch(scope, region, targets) for region in op.regions]


def _branch(scope: Scope, region: Graph, targets: Sequence[View | None]) -> list[Node]:
    inner = Scope(scope.unit, scope.rules, region, scope)
    made = {value for op in region.operations for value in op.results}
    for value, target in zip(region.results, targets, strict=True):
        if target is not None and value in made and root_of(value) is value:
            inner.preferred.setdefault(value, target.buffer)
    for value, view, target in zip(region.results, inner.run(), targets, strict=True):
        if view is not None and target is not None and not is_same(view, target):
            inner.copy(view, target, value=value)
    return inner.nodes


RULES = {"while": while_, "case": case, "if": if_}
"""Operation -> rule."""
