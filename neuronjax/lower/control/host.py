"""Operations that no engine can do: a `host` instruction with the operation as text.

A real core could not run such a program; the legality report says so. Here the rest of the program
runs on engines all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from neuronjax.hlo import module as hlo
from neuronjax.hlo.graph import Op, Value
from neuronjax.hlo.module import TOKEN
from neuronjax.jaxlib_api.mlir import func, ir, stablehlo
from neuronjax.lower.control.printing import created, tensor_type
from neuronjax.lower.operations import is_constant
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.control import Host
from neuronjax.program.operand import Buffer


def lower(scope: Scope, op: Op, reason: str = "") -> None:
    """The operation as it is, on dense values; empty ones are not passed. `reason` says why it is
    here, if its name does not."""
    present = [value for value in _needed(op) if _is_given(op, value) and not value.is_empty]
    results = [value for value in op.results if not value.is_empty]
    views = [whole_view(scope.dense(value), value.shape) for value in present]
    buffers = [scope.result(value) for value in results]
    text = module_text(op)

    def write(builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        builder.emit(
            Host(
                function=op.name,
                dsts=tuple(whole_view(b, b.shape).access() for b in made),
                srcs=tuple(whole_view(v.buffer, v.buffer.shape).access() for v in seen),
                attributes=text,
                comparisons=_comparisons(op),
                reason=reason,
            )
        )

    scope.kernel(op.name.replace(".", "_"), [op], ("host", text), views, buffers, write)


def _comparisons(op: Op) -> int:
    """Counts the comparisons of a sort: about n log2 n in a row of n."""
    if op.name != "sort":
        return 0
    shape = op.operands[0].shape
    row = shape[op.attributes.get("dimension", -1) % len(shape)]
    return math.prod(shape) * max(row - 1, 0).bit_length()


def _needed(op: Op) -> list[Value]:
    """The operands, and values from around that regions use."""
    return list(dict.fromkeys((*op.operands, *_captured(op))))


def _captured(op: Op) -> dict[Value, None]:
    """Values from around that regions use, each once, in order."""
    return dict.fromkeys(value for region in op.regions for value in region.captured())


def module_text(op: Op) -> str:
    """A module whose `main` is this operation of its operands, as MLIR text.

    Tokens are neither taken nor returned: they order nothing within one operation. Constants that
    regions use stay constants.
    """
    twin = op.mlir
    with twin.context if twin is not None else hlo.context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(op.name)
        with ir.InsertionPoint(module.body):
            operands = _needed(op)
            given = [value for value in operands if _is_given(op, value)]
            function = func.FuncOp("main", ([tensor_type(value) for value in given], []))
            with ir.InsertionPoint(function.add_entry_block()):
                stands = dict(zip(given, function.arguments, strict=True))
                for value in operands:
                    if value not in stands:
                        stands[value] = _made_inside(value)
                made = _placed(op, stands).results
                results = [
                    new for new, old in zip(made, op.results, strict=True) if old.dtype != TOKEN
                ]
                func.ReturnOp(results)
            types = (
                [value.type for value in function.arguments],
                [result.type for result in results],
            )
            kind = ir.FunctionType.get(*types)
            function.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
        return str(module)


def _is_given(op: Op, value: Value) -> bool:
    """Whether `main` takes a value."""
    return value.dtype != TOKEN and (value in op.operands or not is_constant(value))


def _made_inside(value: Value) -> ir.Value:
    """A token, or a constant."""
    if value.dtype == TOKEN:
        return stablehlo.CreateTokenOp().result
    assert value.producer is not None
    return created(value.producer, ()).results[0]


def _placed(op: Op, stands: Mapping[Value, ir.Value]) -> ir.Operation:
    """The operation, at the insertion point, with what stands for its operands."""
    if op.mlir is None:
        return created(op, [stands[value] for value in op.operands])
    clone = op.mlir.clone()
    _strip(clone)
    for old, value in zip(_outer_values(op.mlir), _captured(op), strict=True):
        _replace(clone, old, stands[value])
    for index, value in enumerate(op.operands):  # two of them may have become one
        clone.operands[index] = stands[value]
    return clone


_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


def _strip(operation: ir.Operation) -> None:
    """Removes shardings, which name a mesh of the module that the operation came from."""
    for name in _SHARDINGS:
        if name in operation.attributes:
            del operation.attributes[name]


def _outer_values(twin: ir.Operation) -> list[ir.Value]:
    """MLIR values from outside that the regions of an operation use, each once, in order."""
    outer_values: list[ir.Value] = []
    inside: set[ir.Value] = set()

    def visit(operation: ir.Operation) -> None:
        for region in operation.regions:
            for block in region.blocks:
                inside.update(block.arguments)
                for inner in block.operations:
                    for operand in inner.operation.operands:
                        if operand not in inside and operand not in outer_values:
                            outer_values.append(operand)
                    visit(inner.operation)
                    inside.update(inner.operation.results)

    visit(twin)
    return outer_values


def _replace(operation: ir.Operation, old: ir.Value, new: ir.Value) -> None:
    for index, operand in enumerate(operation.operands):
        if operand == old:
            operation.operands[index] = new
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                _replace(inner.operation, old, new)
