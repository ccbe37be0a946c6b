"""Layouts that the user requests: the order of an array's dimensions in memory, minor to major.

Layouts are reported, but not acted upon: see ``pjrt/layouts.py``. Wherever a layout is optional,
``None`` means row-major.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from neuronjax.errors import UnsupportedProgramError
from neuronjax.jaxlib_api.mlir import func, ir

Order = tuple[int, ...]
"""Dimensions, minor to major."""

LAYOUT_MODE = "mhlo.layout_mode"
"""Attribute of an argument or a result of ``main``: "default", "auto", or a layout as text."""

_TEXT = re.compile(r"\{([\d,]*)(:E\(\d+\))?\}")
"""Dimensions from minor to major, and the bits of elements smaller than a byte."""


def row_major(rank: int) -> Order:
    """The order of dimensions in C."""
    return tuple(reversed(range(rank)))


def text_of(order: Order) -> str:
    """An order as XLA writes it: ``{1,0}``."""
    return "{" + ",".join(map(str, order)) + "}"


def argument_order(
    function: func.FuncOp,
    index: int,
    attributes: dict[str, ir.Attribute],
    results: Sequence[dict[str, ir.Attribute]],
) -> Order | None:
    """The layout of an argument of ``main`` with these attributes.

    "auto" is row-major, unless the argument is returned unchanged in a requested layout.

    Raises:
      UnsupportedProgramError: a layout with tiles.
    """
    mode = _mode(attributes)
    if mode != "auto":
        return _asked(mode)
    for number, entry in enumerate(results):
        value = _returned(function, number)
        returned = isinstance(value, ir.BlockArgument) and value.arg_number == index
        if returned and _mode(entry) != "auto":
            return _asked(_mode(entry))
    return None


def result_order(
    function: func.FuncOp,
    index: int,
    attributes: dict[str, ir.Attribute],
    arguments: Sequence[Order | None],
) -> Order | None:
    """The layout of a result of ``main`` with these attributes.

    "auto" leaves it to the compiler, which takes the order in which the result is computed, as XLA
    does on ``cpu``: that of an argument that is returned unchanged, or else that of values computed
    in row-major order and then transposed, with element-wise operations before or after.

    Raises:
      UnsupportedProgramError: a layout with tiles.
    """
    mode = _mode(attributes)
    if mode != "auto":
        return _asked(mode)
    value = function.entry_block.operations[len(function.entry_block.operations) - 1].operands[
        index
    ]
    if isinstance(value, ir.BlockArgument):
        return arguments[value.arg_number]
    return _stated(_Origins(function).order(value))


def _mode(attributes: dict[str, ir.Attribute]) -> str:
    return ir.StringAttr(attributes[LAYOUT_MODE]).value if LAYOUT_MODE in attributes else "default"


def _asked(mode: str) -> Order | None:
    if mode == "default":
        return None
    match = _TEXT.fullmatch(mode)
    if match is None:
        raise UnsupportedProgramError(
            f"main has an argument or result of layout {mode}; only the order of dimensions can be "
            "chosen: give jax.experimental.layout.Layout major_to_minor alone, without tiling."
        )
    return _stated(tuple(int(dim) for dim in match[1].split(",") if dim))


def _stated(order: Order | None) -> Order | None:
    return None if order is None or order == row_major(len(order)) else order


class _Origins:
    """The order in which values are computed if the arguments are row-major; ``None`` is any."""

    def __init__(self, main: func.FuncOp) -> None:
        self._functions = {
            op.name.value: op
            for op in main.operation.parent.regions[0].blocks[0].operations
            if op.operation.name == "func.func"
        }
        self._known: dict[ir.Value, Order | None] = {}

    def order(self, value: ir.Value, depth: int = 0) -> Order | None:
        if isinstance(value, ir.BlockArgument) or depth > _MAX_DEPTH:
            return row_major(_rank(value))
        if value not in self._known:
            self._known[value] = self._made_by(value.owner.operation, value, depth + 1)
        return self._known[value]

    def _made_by(self, op: ir.Operation, value: ir.Value, depth: int) -> Order | None:
        if op.name == "stablehlo.transpose":
            inner = self.order(op.operands[0], depth)
            places = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            return None if inner is None else tuple(places.index(dim) for dim in inner)
        if op.name == "stablehlo.custom_call" and _is_constraint(op):
            (order,) = ir.ArrayAttr(op.attributes["result_layouts"])
            return tuple(int(dim) for dim in ir.DenseIntElementsAttr(order))
        if op.name == "func.call":
            callee = self._functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            result = _returned(callee, ir.OpResult(value).result_number)
            if isinstance(result, ir.BlockArgument):
                result = op.operands[result.arg_number]
            return self.order(result, depth)
        if op.name in _UNIFORM and not any(map(_rank, op.operands)):
            return None
        if op.name in _ELEMENTWISE:
            orders = {self.order(operand, depth) for operand in op.operands} - {None}
            if len(orders) == 1:
                return orders.pop()
        return row_major(_rank(value))


_MAX_DEPTH = 100
"""A value counts as row-major after this many operations."""


def _returned(function: func.FuncOp, index: int) -> ir.Value:
    *_, end = function.entry_block.operations
    return end.operands[index]


def _is_constraint(operation: ir.Operation) -> bool:
    return ir.StringAttr(operation.attributes["call_target_name"]).value == "LayoutConstraint"


def _rank(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank


_UNIFORM = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.constant"})
"""Broadcasts and constants, which can be made in any order."""

_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs", "add", "and", "atan2", "cbrt", "ceil", "compare", "convert", "cosine", "divide",
        "exponential", "exponential_minus_one", "floor", "is_finite", "log", "log_plus_one",
        "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power", "remainder",
        "round_nearest_even", "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tan", "tanh",
        "xor",
    )
)  # fmt: skip
