"""erfc, recognised in what XLA makes of it.

JAX before 0.12 sends a plugin no operation of CHLO, and XLA's partitioner leaves none: only the
polynomials arrive.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from neuronjax.hlo import chlo
from neuronjax.hlo import module as hlo
from neuronjax.legalize.emit import element_type, made_by, number_of

_ERFC = """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = chlo.erfc %x : tensor<f32> -> tensor<f32>
  return %y : tensor<f32>
}
"""
_ANY_ORDER = frozenset({"stablehlo.add", "stablehlo.multiply"})

Node = tuple[str, str, tuple[int, ...], float | None]
"""An operation: its name, its comparison, numbers of its operands, and its number if it is one."""


@cache
def _expansion() -> tuple[Node, ...]:
    """What XLA makes of erfc of one FP32 number, which is node 0; the result is the last node."""
    with hlo.context():
        module = hlo.load(_ERFC.encode())
        chlo.expand(module, ())
        (block,) = hlo.main_function(module).body.blocks
        numbers = {block.arguments[0]: 0}
        nodes: list[Node] = [("", "", (), None)]
        for op in block.operations:
            if op.name == "func.return":
                return tuple(nodes[: 1 + numbers[op.operands[0]]])
            operands = tuple(numbers[operand] for operand in op.operands)
            numbers[op.results[0]] = len(nodes)
            nodes.append((op.name, _direction(op), operands, number_of(op.results[0])))
    raise AssertionError("the expansion returns nothing")


def _direction(op: Any) -> str:
    attributes = op.attributes
    has_one = "comparison_direction" in attributes
    return str(attributes["comparison_direction"]) if has_one else ""


def erfc_operand(value: Any) -> Any | None:
    """The x of erfc(x): the operation, or its expansion in FP32, rounded to its own type."""
    whole = made_by(value, "chlo.erfc")
    if whole is not None:
        return whole.operands[0]
    last = made_by(value, "stablehlo.convert")
    if last is None or made_by(last.operands[0], "stablehlo.select") is None:
        return None
    known: dict[int, Any] = {}
    nodes = _expansion()
    if not _is_same(nodes, len(nodes) - 1, last.operands[0], known):
        return None
    widened = made_by(known[0], "stablehlo.convert")
    if widened is None or element_type(widened.operands[0]) != element_type(value):
        return None
    return widened.operands[0]


def _is_same(nodes: tuple[Node, ...], at: int, value: Any, known: dict[int, Any]) -> bool:
    """Whether a value is computed as a node is; `known` gets what stands for which node."""
    if at in known:
        return bool(known[at] == value)
    name, direction, operands, number = nodes[at]
    if number is not None:
        return number_of(value) == number
    known[at] = value
    if not name:
        return True
    op = made_by(value, name)
    if op is None or _direction(op) != direction:
        return False
    given = list(op.operands)
    if name in _ANY_ORDER:
        operands = tuple(sorted(operands, key=lambda node: nodes[node][3] is not None))
        given.sort(key=lambda operand: number_of(operand) is not None)
    return all(
        _is_same(nodes, node, operand, known) for node, operand in zip(operands, given, strict=True)
    )
