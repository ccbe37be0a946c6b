"""The points where a program is checked: where NaN may get lost, literal NaN, and indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize.emit import shape
from neuronjax.legalize.op_kinds import SHARDING_MARKS, is_float, literal_of

Indices = list[tuple[ir.Value, np.ndarray]]
"""Start indices, with the greatest allowed ones as broadcastable arrays."""


def may_lose_nan(op: ir.Operation) -> list[ir.Value]:
    """Float operands whose NaN may be missing from the results: selected, compared or sliced.

    All other ops propagate NaN, as sums, products and maxima do.
    """
    count = _LOSING.get(op.name)
    if op.name == "stablehlo.convert" and not is_float(op.results[0]):
        count = _all
    if op.name == "stablehlo.reduce" and len(op.results) > 1:
        count = _values
    if op.name == "stablehlo.custom_call" and custom_call_target(op) not in SHARDING_MARKS:
        count = _all
    operands = list(count(op)) if count else []
    return [operand for operand in operands if is_float(operand) and literal_of(operand) is None]


def _all(op: ir.Operation) -> Sequence[ir.Value]:
    return op.operands


def _first(op: ir.Operation) -> Sequence[ir.Value]:
    return list(op.operands)[:1]


def _values(op: ir.Operation) -> Sequence[ir.Value]:
    """The first half of the operands: those that are reduced or updated."""
    return list(op.operands)[: len(op.operands) // 2]


_LOSING: dict[str, Callable[[ir.Operation], Sequence[ir.Value]]] = {
    "stablehlo.select": _all,
    "stablehlo.clamp": _all,
    "stablehlo.compare": _all,
    "stablehlo.is_finite": _all,
    "stablehlo.bitcast_convert": _all,
    "stablehlo.power": _all,
    "stablehlo.real": _all,
    "stablehlo.imag": _all,
    "stablehlo.slice": _first,
    "stablehlo.dynamic_slice": _first,
    "stablehlo.dynamic_update_slice": _first,
    "stablehlo.gather": _first,
    "stablehlo.scatter": _values,
    "stablehlo.reduce_window": _values,
    "stablehlo.select_and_scatter": _first,
    "stablehlo.convolution": _first,
    "stablehlo.collective_permute": _all,
    "chlo.top_k": _first,
}


def has_nan_literal(op: ir.Operation) -> bool:
    """Whether an operand is a constant of the program with a NaN."""
    return any(is_nan_literal(operand) for operand in op.operands)


def is_nan_literal(value: ir.Value) -> bool:
    """Whether a value is a float constant with a NaN, possibly broadcast."""
    constant = literal_of(value) if is_float(value) else None
    if constant is None:
        return False
    numbers = constant.attributes["value"]
    if not isinstance(numbers, ir.DenseFPElementsAttr):
        return False
    if numbers.is_splat:
        return bool(np.isnan(ir.FloatAttr(numbers.get_splat_value()).value))
    try:
        return bool(np.isnan(np.array(numbers)).any())
    except TypeError:  # a table of a type that MLIR does not hand to NumPy
        return False


def start_indices(op: ir.Operation) -> Indices:
    """The start indices of an op that the partitioner did not shift."""
    find = _LIMITS.get(op.name)
    return [pair for pair in find(op) if not _shifted_by_core(pair[0])] if find else []


def _shifted_by_core(index: ir.Value) -> bool:
    """Whether the partitioner has shifted an index by the position of the core.

    The partitioner subtracts an entry of a constant table, looked up by the core's number, from the
    index. If the program itself uses the core's number, that is recognised by its name.
    """
    waiting, seen = [index], set()
    while waiting:
        value = waiting.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        op = value.owner.operation
        if op.name == "stablehlo.replica_id":
            if _AXIS_INDEX not in str(op.location):
                return True
        elif op.name in _INDEX_ARITHMETIC or _looks_up_constant(op):
            waiting.extend(op.operands)
    return False


def _looks_up_constant(op: ir.Operation) -> bool:
    if op.name != "stablehlo.dynamic_slice":
        return False
    table = op.operands[0].owner
    return not isinstance(table, ir.Block) and table.operation.name == "stablehlo.constant"


_INDEX_ARITHMETIC = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "clamp",
        "select", "convert", "broadcast_in_dim", "reshape", "transpose", "concatenate", "slice",
    )
)  # fmt: skip
_AXIS_INDEX = "axis_index"
"""JAX's name for a core number that a program uses."""


def _gather_limits(op: ir.Operation) -> Indices:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    operand, indices = op.operands
    limits = [shape(operand)[dim] - sizes[dim] for dim in numbers.start_index_map]
    return [(indices, _along(indices, limits, numbers.index_vector_dim))]


def _scatter_limits(op: ir.Operation) -> Indices:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    operands = list(op.operands)
    count = len(operands) // 2
    operand, indices, update = operands[0], operands[count], operands[count + 1]
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    windows = iter(numbers.update_window_dims)
    sizes = [
        1 if dim in single else shape(update)[next(windows)] for dim in range(len(shape(operand)))
    ]
    dims = numbers.scattered_dims_to_operand_dims
    limits = [shape(operand)[dim] - sizes[dim] for dim in dims]
    return [(indices, _along(indices, limits, numbers.index_vector_dim))]


def _slice_limits(
    sized: Callable[[ir.Operation], ir.Value], first_index: int
) -> Callable[[ir.Operation], Indices]:
    """The limits of dynamic slices: ``sized`` gives the value whose shape is the slice's."""

    def limits(op: ir.Operation) -> Indices:
        sizes = zip(shape(op.operands[0]), shape(sized(op)), strict=True)
        indices = list(op.operands)[first_index:]
        pairs = zip(indices, sizes, strict=True)
        return [(index, np.array(whole - part)) for index, (whole, part) in pairs]

    return limits


_LIMITS: dict[str, Callable[[ir.Operation], Indices]] = {
    "stablehlo.gather": _gather_limits,
    "stablehlo.scatter": _scatter_limits,
    "stablehlo.dynamic_slice": _slice_limits(lambda op: op.results[0], 1),
    "stablehlo.dynamic_update_slice": _slice_limits(lambda op: op.operands[1], 2),
}
"""Op -> its start indices and their limits."""


def _along(indices: ir.Value, limits: list[int], dim: int) -> np.ndarray:
    """``limits`` along a dimension of ``indices``; the dimension may be left out there."""
    dims = [1] * len(shape(indices))
    if dim < len(dims):
        dims[dim] = len(limits)
    return np.array(limits).reshape(dims)
