"""Changes the structure of a program in place: inlining, and extending control flow by values.

Every function needs the module's MLIR context to be current.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from neuronjax.hlo import location
from neuronjax.hlo import module as hlo
from neuronjax.hlo.calls import CallGraph, callee_of
from neuronjax.jaxlib_api.mlir import OpOrView, func, ir

LOOP = "stablehlo.while"
BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})


def terminator(block: ir.Block) -> ir.Operation:
    """The last op of a block: its return."""
    return block.operations[len(block.operations) - 1].operation


def inner_ops(block: ir.Block) -> list[ir.Operation]:
    """The ops of a block before its terminator, as a list that survives changes to the block."""
    ops = [op.operation for op in block.operations]
    return ops[:-1]


def blocks(op: OpOrView) -> Iterator[ir.Block]:
    """The blocks of all regions of an op."""
    for region in op.regions:
        yield from region.blocks


def set_terminator(block: ir.Block, operands: Sequence[ir.Value]) -> None:
    """Makes a block return ``operands``."""
    old = terminator(block)
    ir.Operation.create(
        old.name, operands=list(operands), loc=old.location, ip=ir.InsertionPoint(old)
    )
    old.erase()


def inline_calls(module: ir.Module, is_chosen: Callable[[str], bool] = lambda name: True) -> None:
    """Replaces the calls of all functions whose names are chosen by their ops, and removes those
    functions. By default nothing remains but main and what nobody calls.

    The location of an inlined op is its own, called from the call's; in functions made from JAX's
    own code it is the call's, because JAX traces them once for all callers.
    """
    main = hlo.main_function(module).operation
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    chosen = {name: op for name, op in functions.items() if op != main and is_chosen(name)}
    if not chosen:
        return
    graph = CallGraph(module)
    inlined: set[str] = set()
    for function in (op for name, op in functions.items() if name not in chosen):
        while calls := _calls(function, chosen):
            for call in calls:
                callee = callee_of(call)
                inline(call, chosen[callee], keep_locations=not graph.is_library(call))
                inlined.add(callee)
    for name in inlined:
        chosen[name].erase()


def _calls(function: OpOrView, chosen: Collection[str]) -> list[ir.Operation]:
    calls: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call" and callee_of(op) in chosen:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return calls


def inline(op: OpOrView, function: OpOrView, *, keep_locations: bool = True) -> None:
    """Replaces ``op`` by the ops of ``function``, whose arguments are the op's operands."""
    with ir.InsertionPoint(op):
        copy = function.operation.clone()
    body = copy.regions[0].blocks[0]
    for argument, operand in zip(body.arguments, op.operands, strict=True):
        argument.replace_all_uses_with(operand)

    places: dict[ir.Attribute, ir.Location] = {}

    def relocate(inner: ir.Operation) -> ir.WalkResult:
        old = inner.location.attr
        if old not in places:
            places[old] = location.inlined(inner, op)
        inner.location = places[old]
        return ir.WalkResult.ADVANCE

    if keep_locations:
        copy.walk(relocate)
    for inner in inner_ops(body):
        if not keep_locations:
            inner.location = op.location
        inner.move_before(op)
    for result, value in zip(op.results, terminator(body).operands, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    copy.erase()


def extend_loop(op: OpOrView, inits: Sequence[ir.Value]) -> ir.Operation:
    """Replaces the while op ``op`` by one that carries additional values, which come last.

    Its body returns them unchanged until ``set_yield`` changes that. Returns the new op.
    """
    types = [init.type for init in inits]
    new = _replaced(op, [*op.operands, *inits], types)
    for block in blocks(new):
        for type_ in types:
            block.add_argument(type_, new.location)
    body = new.regions[1].blocks[0]
    own = list(terminator(body).operands)
    set_terminator(body, own + list(body.arguments)[len(own) :])
    return new


def extend_branches(
    op: OpOrView, types: Sequence[ir.Type], values: Sequence[Sequence[ir.Value]]
) -> ir.Operation:
    """Replaces the case or if op ``op`` by one with more results of ``types``, which come last.

    ``values[i]`` are those that branch i returns. Returns the new op.
    """
    new = _replaced(op, list(op.operands), types)
    for block, extra in zip(blocks(new), values, strict=True):
        set_terminator(block, [*terminator(block).operands, *extra])
    return new


def set_yield(block: ir.Block, index: int, value: ir.Value) -> None:
    """Changes what a block returns at a position."""
    terminator(block).operands[index] = value


def prepend_operand(op: OpOrView, value: ir.Value) -> ir.Operation:
    """Replaces an op by one with one more operand, the first. Returns the new op."""
    return _replaced(op, [value, *op.operands], ())


def move_regions(op: OpOrView, new: OpOrView) -> None:
    """Gives the blocks of an operation to another one with as many regions."""
    for source, target in zip(op.regions, new.regions, strict=True):
        for block in list(source.blocks):
            block.append_to(target)


def _replaced(
    op: OpOrView, operands: list[ir.Value], more_results: Sequence[ir.Type]
) -> ir.Operation:
    types = [result.type for result in op.results]
    new = ir.Operation.create(
        op.name,
        results=[*types, *more_results],
        operands=operands,
        attributes={name: op.attributes[name] for name in op.attributes},
        regions=len(op.regions),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    move_regions(op, new)
    for old, result in zip(op.results, list(new.results)[: len(types)], strict=True):
        old.replace_all_uses_with(result)
    op.erase()
    return new


_SHARDINGS = "mhlo.spmd_output_sharding"
_LAST = ", {replicated}}"


def append_result(module: ir.Module, value: ir.Value) -> None:
    """Makes main return ``value`` after its own results; every core returns its own."""
    main = hlo.main_function(module)
    entries = hlo.attributes(main, "res_attrs")
    own = list(terminator(main.regions[0].blocks[0]).operands)
    set_results(main, [*own, value], [*entries, {}])
    if _SHARDINGS in module.operation.attributes:
        text = ir.StringAttr(module.operation.attributes[_SHARDINGS]).value
        whole = "{" + text + _LAST if len(own) == 1 else text[:-1] + _LAST
        module.operation.attributes[_SHARDINGS] = ir.StringAttr.get(whole)


def without_last_result(code: bytes) -> bytes:
    """A module, as bytecode, without the result that ``append_result`` added."""
    with hlo.context():
        module = hlo.load(code)
        main = hlo.main_function(module)
        own = list(terminator(main.regions[0].blocks[0]).operands)[:-1]
        set_results(main, own, hlo.attributes(main, "res_attrs")[:-1])
        if _SHARDINGS in module.operation.attributes:
            text = ir.StringAttr(module.operation.attributes[_SHARDINGS]).value.removesuffix(_LAST)
            module.operation.attributes[_SHARDINGS] = ir.StringAttr.get(
                text[1:] if len(own) == 1 else text + "}"
            )
        return hlo.dump(module)


def set_results(
    main: func.FuncOp, values: Sequence[ir.Value], entries: Sequence[dict[str, ir.Attribute]]
) -> None:
    """Makes main return ``values``, whose attributes are ``entries``."""
    set_terminator(main.regions[0].blocks[0], values)
    signature = ir.FunctionType.get(list(main.type.inputs), [value.type for value in values])
    main.attributes["function_type"] = ir.TypeAttr.get(signature)
    main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in entries])
