"""The bodies of ``shard_map`` become part of the program that calls them.

XLA's partitioner leaves each in a function of its own, and XLA inlines them right after it. What is
done with whole blocks, such as combining all-reduces, must not stop at their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.hlo.calls import callee_of, terminator
from neuronjax.hlo.location import inlined
from neuronjax.jaxlib_api import partitioner_dump
from neuronjax.jaxlib_api.mlir import ir


def inline_manual_computations(module: ir.Module) -> None:
    """Inlines the calls of ``shard_map``'s bodies, in place. Needs the module's MLIR context."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    bodies = {
        name: op
        for name, op in functions.items()
        if name.startswith(partitioner_dump.MANUAL_COMPUTATION)
    }
    for name in functions.keys() - bodies.keys():
        _inline_calls(functions[name], bodies)
    for body in bodies.values():
        body.erase()


def _inline_calls(within: Any, bodies: Mapping[str, Any]) -> None:
    calls: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "func.call" and callee_of(op) in bodies:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    within.walk(visit)
    for call in calls:
        body = bodies[callee_of(call)].clone()
        _inline_calls(body, bodies)
        _replace(call, body)


def _replace(call: Any, body: Any) -> None:
    """Puts the operations of a detached function where it is called."""

    def relocate(op: Any) -> ir.WalkResult:
        op.location = inlined(op, call)
        return ir.WalkResult.ADVANCE

    body.walk(relocate)
    block = body.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    returned = terminator(body)
    for op in list(block.operations)[:-1]:
        op.operation.move_before(call)
    for result, value in zip(call.results, returned.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    body.erase()
