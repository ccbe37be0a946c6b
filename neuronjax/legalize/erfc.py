"""erfc, also where only what XLA makes of it arrives, in a module."""

from __future__ import annotations

from neuronjax.hlo.expansions import DIRECTION, Made, Reader
from neuronjax.hlo.graph import attribute_value
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import element_type, made_by, number_of


def _made(value: ir.Value) -> Made | None:
    op = value.owner
    if isinstance(op, ir.Block):
        return None
    compares = DIRECTION in op.attributes
    direction = attribute_value(op.attributes[DIRECTION]) if compares else None
    return Made(op.name.removeprefix("stablehlo."), direction, op.operands)


READER: Reader[ir.Value] = Reader(_made, number_of)


def erfc_operand(value: ir.Value) -> ir.Value | None:
    """The x of erfc(x): the operation, or its expansion in FP32, rounded to its own type."""
    whole = made_by(value, "chlo.erfc")
    if whole is not None:
        return whole.operands[0]
    last = made_by(value, "stablehlo.convert")
    if last is None or made_by(last.operands[0], "stablehlo.select") is None:
        return None
    argument = READER.argument("chlo.erfc", last.operands[0])
    widened = None if argument is None else made_by(argument, "stablehlo.convert")
    if widened is None or element_type(widened.operands[0]) != element_type(value):
        return None
    return widened.operands[0]
