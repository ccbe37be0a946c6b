"""Ops in wider floats: the same op with every narrower float type replaced.

``Widening("f64")`` is arithmetic in FP64, ``Widening("f32")`` in FP32. Rules are a table by op
name; ops without a row keep their name, attributes and regions, and only their types change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.hlo.structure import blocks, move_regions
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import after, convert, element_type, with_element_type
from neuronjax.legalize.op_kinds import SHARDING_MARKS

_NARROWER_THAN_FP32 = (
    "bf16", "f16", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2",
    "f8E5M2FNUZ", "f8E8M0FNU", "f4E2M1FN",
)  # fmt: skip
_WIDER = {
    "f64": dict.fromkeys((*_NARROWER_THAN_FP32, "f32"), "f64") | {"complex<f32>": "complex<f64>"},
    "f32": dict.fromkeys(_NARROWER_THAN_FP32, "f32"),
}
REFERENCES = {"float64": "f64", "float32": "f32"}
"""Name of a reference arithmetic -> element type."""

_Values = list[Any]
_LAPACK = re.compile(r"lapack_([sc])")
_WIDE_LAPACK = {"s": "lapack_d", "c": "lapack_z"}


class Widening:
    """Widens floats of types and ops to ``to`` (``f64`` or ``f32``); wider ones do not change."""

    def __init__(self, to: str) -> None:
        self._to = _WIDER[to]

    def type(self, type_: ir.Type) -> ir.Type:
        """A value's type in the wider program."""
        name = element_type(type_)
        return with_element_type(type_, self._to[name]) if name in self._to else type_

    def changes(self, value: Any) -> bool:
        """Whether a value has another type in the wider program."""
        return element_type(value) in self._to

    def value(self, value: Any) -> Any:
        """``value`` converted, at the current insertion point."""
        name = element_type(value)
        return convert(value, self._to.get(name, name))

    def op(self, op: Any, operands: Sequence[Any]) -> _Values:
        """Writes ``op`` on wider ``operands`` at the insertion point, and returns its results."""
        rule = _RULES.get(op.name, Widening._same)
        return rule(self, op, list(operands))

    def _same(self, op: Any, operands: _Values, target: str | None = None) -> _Values:
        attributes = {name: op.attributes[name] for name in op.attributes}
        attributes.pop("algorithm", None)  # of a dot: it names operand types
        if target is not None:
            attributes["call_target_name"] = ir.StringAttr.get(target)
        new = ir.Operation.create(
            op.name,
            results=[self.type(result.type) for result in op.results],
            operands=operands,
            attributes=attributes,
            regions=len(op.regions),
        )
        if len(op.regions):
            self._take_regions(op, new)
        return list(new.results)

    def _take_regions(self, op: Any, new: Any) -> None:
        copy = op.clone()
        move_regions(copy, new)
        copy.erase()
        for block in blocks(new):
            self._retype(block)

    def _retype(self, block: Any) -> None:
        for argument in block.arguments:
            argument.set_type(self.type(argument.type))
        for view in list(block.operations):
            inner = view.operation
            if inner.name == "stablehlo.constant":
                if self.changes(inner.results[0]):
                    with after(inner):
                        wide = self.value(inner.results[0])
                    inner.results[0].replace_all_uses_except(wide, wide.owner.operation)
                continue
            for result in inner.results:
                result.set_type(self.type(result.type))
            for inside in blocks(inner):
                self._retype(inside)

    def _constant(self, op: Any, operands: _Values) -> _Values:
        return [self.value(op.clone().results[0])]

    def _convert(self, op: Any, operands: _Values) -> _Values:
        return [convert(operands[0], element_type(self.type(op.results[0].type)))]

    def _operand(self, op: Any, operands: _Values) -> _Values:
        return operands[:1]

    def in_own_types(self, op: Any, operands: _Values) -> _Values:
        """The unchanged op on operands rounded to its own types, for ops without a wider form."""
        copy = op.clone()
        for index, operand in enumerate(operands):
            with ir.InsertionPoint(copy):
                copy.operands[index] = _as(operand, copy.operands[index].type)
        return [self.value(result) for result in copy.results]

    def _custom_call(self, op: Any, operands: _Values) -> _Values:
        target = custom_call_target(op) or ""
        if target in SHARDING_MARKS or target.startswith("mhlo."):
            return self._same(op, operands)
        if _LAPACK.match(target) and "f64" in self._to.values():
            wide = _LAPACK.sub(lambda match: _WIDE_LAPACK[match[1]], target)
            return self._same(op, operands, wide)
        return self.in_own_types(op, operands)


def _as(value: Any, type_: ir.Type) -> Any:
    return value if value.type == type_ else convert(value, element_type(type_))


_RULES: dict[str, Callable[[Widening, Any, _Values], _Values]] = {
    "stablehlo.constant": Widening._constant,
    "stablehlo.convert": Widening._convert,
    "stablehlo.reduce_precision": Widening._operand,
    "stablehlo.bitcast_convert": Widening.in_own_types,
    "stablehlo.custom_call": Widening._custom_call,
}
