"""Operations of the CHLO dialect in terms of StableHLO: the expansions that XLA itself uses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.jaxlib_api.mlir import PassManager, ir

_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_MARK = "neuronjax.keep."
_TARGET = "call_target_name"


def expand(module: ir.Module, kept: Collection[str]) -> None:
    """Replaces operations of CHLO, apart from those named in `kept`; in place."""
    if not _found(module, lambda op: op.name.startswith("chlo.") and op.name not in kept):
        return
    for op in _found(module, lambda op: op.name in kept and op.name.startswith("chlo.")):
        _replace(op, "stablehlo.custom_call", {_TARGET: ir.StringAttr.get(_MARK + op.name)})
    PassManager.parse(_PASSES, context=module.context).run(module.operation)
    for op in _found(module, lambda op: (custom_call_target(op) or "").startswith(_MARK)):
        target = custom_call_target(op)
        assert target is not None
        _replace(op, target.removeprefix(_MARK), {})


def _found(module: ir.Module, wanted: Callable[[Any], bool]) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if wanted(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _replace(op: Any, name: str, more: dict[str, ir.Attribute]) -> None:
    with op.context, op.location:
        attributes = {key: op.attributes[key] for key in op.attributes if key != _TARGET}
        new = ir.Operation.create(
            name,
            results=[result.type for result in op.results],
            operands=list(op.operands),
            attributes={**attributes, **more},
            ip=ir.InsertionPoint(op),
        )
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()
