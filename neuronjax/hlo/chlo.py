"""Operations of the CHLO dialect: restored from composites, and expanded to StableHLO by XLA."""

from __future__ import annotations

from collections.abc import Callable, Collection

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.jaxlib_api.mlir import OpOrView, PassManager, func, ir

_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_MARK = "neuronjax.keep."
_TARGET = "call_target_name"

_COMPOSED = frozenset({
    "chlo.acos", "chlo.acosh", "chlo.asin", "chlo.asinh", "chlo.atanh", "chlo.cosh", "chlo.erf",
    "chlo.erfc", "chlo.mulhi", "chlo.ragged_dot", "chlo.sinh", "chlo.top_k",
})  # fmt: skip
"""Operations that reach a plugin as composites of their name, and that XLA restores.

Versions of jaxlib differ: erfc comes expanded before 0.12, asin from there on."""


def without_composites(module: ir.Module) -> None:
    """Replaces composites by the CHLO operations that they represent, or by calls; in place."""
    composites = _select(module, lambda op: op.name == "stablehlo.composite")
    for op in composites:
        name = ir.StringAttr(op.attributes["name"]).value
        if name in _COMPOSED:
            _replace(op, name, _composite_attributes(op))
        else:
            _call(op)
    if composites:
        manager = PassManager.parse("builtin.module(symbol-dce)", context=module.context)
        manager.run(module.operation)


def _composite_attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    if "composite_attributes" not in op.attributes:
        return {}
    return {
        attribute.name: attribute.attr
        for attribute in ir.DictAttr(op.attributes["composite_attributes"])
    }


def _call(op: ir.Operation) -> None:
    callee = ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
    with op.context, op.location, ir.InsertionPoint(op):
        call = func.CallOp([result.type for result in op.results], callee, list(op.operands))
    _hand_over(op, call)


def expand(module: ir.Module, kept: Collection[str]) -> None:
    """Expands operations of CHLO, except those named in `kept`; in place."""
    if not _select(module, lambda op: op.name.startswith("chlo.") and op.name not in kept):
        return
    for op in _select(module, lambda op: op.name in kept and op.name.startswith("chlo.")):
        mark = {_TARGET: ir.StringAttr.get(_MARK + op.name)}
        _replace(op, "stablehlo.custom_call", _attributes(op) | mark)
    PassManager.parse(_PASSES, context=module.context).run(module.operation)
    for op in _select(module, lambda op: (custom_call_target(op) or "").startswith(_MARK)):
        target = custom_call_target(op)
        assert target is not None
        _replace(op, target.removeprefix(_MARK), _attributes(op))


def _select(module: ir.Module, wanted: Callable[[ir.Operation], bool]) -> list[ir.Operation]:
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if wanted(op):
            ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return ops


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {key: op.attributes[key] for key in op.attributes if key != _TARGET}


def _replace(op: ir.Operation, name: str, attributes: dict[str, ir.Attribute]) -> None:
    with op.context, op.location:
        new = ir.Operation.create(
            name,
            results=[result.type for result in op.results],
            operands=list(op.operands),
            attributes=attributes,
            ip=ir.InsertionPoint(op),
        )
    _hand_over(op, new)


def _hand_over(op: ir.Operation, new: OpOrView) -> None:
    """Replaces the results of an operation by those of another one."""
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()
