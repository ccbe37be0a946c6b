"""Operations that no engine can do: a `host` instruction with the operation as text.

A real core could not run such a program; the legality report says so. Here the rest of the program
runs on engines all the same.
"""

from __future__ import annotations

from neuronjax.hlo.graph import Op, Value, result_types
from neuronjax.hlo.module import ELEMENT_TYPES, TOKEN
from neuronjax.jaxlib_api.mlir import func, ir, stablehlo
from neuronjax.lower.builder import KernelBuilder
from neuronjax.lower.scope import Scope
from neuronjax.lower.view import View, whole_view
from neuronjax.program.control import Host
from neuronjax.program.operand import Buffer

_NAMES = {dtype: name for name, dtype in ELEMENT_TYPES.items()}


def lower(scope: Scope, op: Op) -> None:
    """The operation as it is, on dense values; empty ones are not passed."""
    captured = [value for region in op.regions for value in region.captured()]
    operands = list(dict.fromkeys((*op.operands, *captured)))
    present = [value for value in operands if not value.is_empty]
    results = [value for value in op.results if not value.is_empty]
    views = [whole_view(scope.dense(value), value.shape) for value in present]
    buffers = [scope.result(value) for value in results]
    text = module_text(op, operands)

    def write(builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        builder.emit(
            Host(
                function=op.name,
                dsts=tuple(whole_view(b, b.shape).access() for b in made),
                srcs=tuple(whole_view(v.buffer, v.buffer.shape).access() for v in seen),
                attributes=text,
            )
        )

    scope.kernel(op.name.replace(".", "_"), [op], ("host", text), views, buffers, write)


def module_text(op: Op, operands: list[Value]) -> str:
    """A module whose `main` is this operation of `operands`, as MLIR text.

    Tokens are neither taken nor returned: they order nothing within one operation.
    """
    twin = op.mlir
    with twin.context, ir.Location.unknown():
        types = [_type(value) for value in operands if value.dtype != TOKEN]
        found = result_types(twin)
        kept = [i for i, value in enumerate(op.results) if value.dtype != TOKEN]
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(op.name)
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", (types, [found[i] for i in kept]))
            block = function.add_entry_block()
            with ir.InsertionPoint(block):
                given = iter(block.arguments)
                stands = [
                    stablehlo.CreateTokenOp().result if value.dtype == TOKEN else next(given)
                    for value in operands
                ]
                clone = twin.clone()
                _strip(clone)
                for old, new in zip(_outer_values(twin), stands, strict=True):
                    _replace(clone, old, new)
                made = _elements(clone, len(found))
                func.ReturnOp([made[i] for i in kept])
        return str(module)


_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


def _strip(operation: ir.Operation) -> None:
    """Removes shardings, which name a mesh of the module that the operation came from."""
    for name in _SHARDINGS:
        if name in operation.attributes:
            del operation.attributes[name]


def _elements(clone: ir.Operation, count: int) -> list[ir.Value]:
    """The results of an operation, or the elements of its tuple."""
    if not any(isinstance(result.type, ir.TupleType) for result in clone.results):
        return list(clone.results)
    return [stablehlo.get_tuple_element(clone.results[0], index) for index in range(count)]


def _type(value: Value) -> ir.Type:
    return ir.RankedTensorType.get(value.shape, ir.Type.parse(_NAMES[value.dtype]))


def _outer_values(twin: ir.Operation) -> list[ir.Value]:
    """MLIR values from outside that an operation and its regions use, each once, in order."""
    found: list[ir.Value] = []
    inside: set[ir.Value] = set()

    def visit(operation: ir.Operation) -> None:
        for operand in operation.operands:
            if operand not in inside and operand not in found:
                found.append(operand)
        for region in operation.regions:
            for block in region.blocks:
                inside.update(block.arguments)
                for each in block.operations:
                    visit(each.operation)
                    inside.update(each.operation.results)

    visit(twin)
    return found


def _replace(operation: ir.Operation, old: ir.Value, new: ir.Value) -> None:
    for index, operand in enumerate(operation.operands):
        if operand == old:
            operation.operands[index] = new
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                _replace(each.operation, old, new)
