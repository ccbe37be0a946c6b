"""Sets of StableHLO and CHLO ops by their numerics."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import element_type, is_tensor

ROUNDED = frozenset(
    [f"stablehlo.{name}" for name in (
        "add", "subtract", "multiply", "divide", "remainder", "power", "exponential",
        "exponential_minus_one", "log", "log_plus_one", "sqrt", "rsqrt", "cbrt", "tanh", "logistic",
        "sine", "cosine", "tan", "atan2", "batch_norm_training", "batch_norm_inference",
        "batch_norm_grad",
    )]
    + [f"chlo.{name}" for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf",
        "erf_inv", "erfc", "lgamma", "polygamma", "sinh", "square", "tan", "zeta",
    )]
)  # fmt: skip
"""Element-wise ops (and batch norms) whose floating-point results are rounded. All other
element-wise ops are exact: they select, compare, move or change the sign."""

MATMULS = frozenset(
    {"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution", "chlo.ragged_dot"}
)
"""Ops of the Tensor engine."""

REDUCTIONS = frozenset({"stablehlo.reduce", "stablehlo.reduce_window"})
UPDATES = frozenset({"stablehlo.scatter", "stablehlo.select_and_scatter"})
COLLECTIVES = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
"""Collectives that compute."""

SUMS = frozenset({"stablehlo.add", "stablehlo.subtract"})

_PASSING = frozenset(
    f"stablehlo.{name}" for name in (
        "broadcast_in_dim", "concatenate", "negate", "pad", "reshape", "reverse", "select", "slice",
        "transpose",
    )
)  # fmt: skip
"""Ops that only change the position or sign of values."""

CLOSED = REDUCTIONS | UPDATES | COLLECTIVES | {"stablehlo.sort", "stablehlo.map"}
"""Ops whose regions use only their own arguments and run once per element."""

INTEGER_COMBINERS = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "multiply", "maximum", "minimum")
)
"""Combining ops without an integer data path in reductions over memory or cores."""

INTEGER_ARITHMETIC = frozenset(
    f"stablehlo.{name}" for name in (
        "abs", "add", "and", "clamp", "count_leading_zeros", "divide", "iota",
        "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "reduce",
        "reduce_window", "remainder", "shift_left", "shift_right_arithmetic",
        "shift_right_logical", "sign", "subtract", "xor",
    )
)  # fmt: skip
"""Ops that compute integers, rather than move them or their bits."""


def _is_narrow(name: str, dtype: np.dtype) -> bool:
    return name.startswith(("f", "bf")) and dtype.itemsize < 4


NARROW_FLOATS = {name: "f32" for name, dtype in ELEMENT_TYPES.items() if _is_narrow(name, dtype)}
"""Element type of less than 32 bits -> the type used to compute with it."""

INTEGERS = {name: "f32" for name in ELEMENT_TYPES if name[0] in "iu" and name != "i1"}
"""Integer element type -> the type of the data path it goes through."""

PACKED_INTEGERS = frozenset({"i2", "i4", "ui2", "ui4"})
"""Integer element types that no chip has (NCC_ESPP004)."""

INTEGERS_64 = {"i64": "i32", "ui64": "ui32"}


def touches(op: ir.Operation, types: Container[str]) -> bool:
    """Whether an operand or result of ``op`` has one of these element types."""
    return any(element_type(v) in types for v in (*op.operands, *op.results))


def yields(op: ir.Operation, types: Container[str]) -> bool:
    """Whether a result of ``op`` has one of these element types."""
    return any(element_type(result) in types for result in op.results)


def feeds(value: ir.Value, names: frozenset[str]) -> bool:
    """Whether ``value`` is an operand of one of these ops, directly or through moves."""
    for use in value.uses:
        user = use.owner.operation
        if user.name in names:
            return True
        if user.name in _PASSING and feeds(user.results[0], names):
            return True
    return False


def in_closed_region(op: ir.Operation) -> bool:
    """Whether ``op`` is in a region that runs once per element."""
    parent = op.parent
    while parent is not None and parent.name != "func.func":
        if parent.name in CLOSED:
            return True
        parent = parent.parent
    return False


def inner_ops(op: ir.Operation) -> list[ir.Operation]:
    """The ops directly in the regions of ``op``."""
    return [
        inner.operation
        for region in op.regions
        for block in region.blocks
        for inner in block.operations
    ]


def combines_with(op: ir.Operation, names: frozenset[str]) -> bool:
    """Whether a region of ``op`` has one of these ops."""
    return any(inner.name in names for inner in inner_ops(op))


def operand_list(op: ir.Operation) -> list[tuple[int, ir.Value]]:
    """Operands that are tensors, with their positions."""
    return [(i, o) for i, o in enumerate(op.operands) if is_tensor(o.type)]
