"""Rewrites that give integers the widths and types in which the chip computes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from neuronjax.hlo import module as hlo
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import after, convert, element_type, go_through, ops_of, recompute
from neuronjax.legalize.fp64_integers import Fp64Integers
from neuronjax.legalize.op_sets import (
    INTEGER_ARITHMETIC,
    INTEGER_COMBINERS,
    INTEGERS,
    INTEGERS_64,
    MATMULS,
    PACKED_INTEGERS,
    UPDATES,
    combines_with,
    in_closed_region,
    inner_ops,
    touches,
    yields,
)
from neuronjax.legalize.policy import Policy

NATIVE_INTEGERS_V1 = frozenset({"i8", "ui8", "i32"})
"""Integer types that the Tensor engine of NeuronCore-v1 multiplies and accumulates natively."""


def in_32_bits(module: ir.Module, policy: Policy) -> None:
    of_fp64 = Fp64Integers(module)
    arithmetic = [
        op
        for op in ops_of(module, INTEGER_ARITHMETIC)
        if touches(op, INTEGERS_64) and not in_closed_region(op) and not of_fp64.has(op)
    ]
    constants = [
        op
        for op in ops_of(module, frozenset({"stablehlo.constant"}))
        if yields(op, INTEGERS_64) and not of_fp64.has(op)
    ]
    conversions = [
        op
        for op in ops_of(module, frozenset({"stablehlo.convert"}))
        if yields(op, INTEGERS_64)
        and element_type(op.operands[0]) not in INTEGERS_64
        and not of_fp64.has(op)
    ]
    arguments = [
        argument
        for argument in hlo.main_function(module).entry_block.arguments
        if element_type(argument) in INTEGERS_64 and not of_fp64.has_value(argument)
    ]
    for op in arithmetic:
        recompute(op, INTEGERS_64)
    for op in constants:
        _cut_constant(op)
    for op in conversions:
        go_through(op, INTEGERS_64[element_type(op.results[0])])
    for argument in arguments:
        _cut_where_computed(argument)


def _cut_constant(op: ir.Operation) -> None:
    """Truncates 64-bit integers to 32 bits; the limits of the type, with which minima and maxima
    start, become the limits of the smaller type."""
    numbers = np.array(ir.DenseElementsAttr(op.attributes["value"]))
    narrow = np.dtype(np.uint32 if numbers.dtype.kind == "u" else np.int32)
    wide, small = np.iinfo(numbers.dtype), np.iinfo(narrow)
    limits = [numbers == wide.min, numbers == wide.max]
    cut = np.select(
        limits, [narrow.type(small.min), narrow.type(small.max)], numbers.astype(narrow)
    )
    value = np.ascontiguousarray(cut.astype(numbers.dtype))
    op.attributes["value"] = ir.DenseElementsAttr.get(value, type=op.results[0].type)


_HANDING_ON = frozenset(
    f"stablehlo.{name}" for name in (
        "all_gather", "broadcast_in_dim", "collective_permute", "concatenate", "dynamic_slice",
        "dynamic_update_slice", "gather", "pad", "reshape", "reverse", "slice", "transpose",
    )
)  # fmt: skip
"""Ops that move numbers, and only compute with indices."""
_PLACES = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}
"""Op -> position of its first operand that is an index."""


def _cut_where_computed(argument: ir.Value) -> None:
    """Truncates 64-bit integers to 32 bits wherever they are computed with; those that are only
    moved and returned keep their bits."""
    waiting, seen = [argument], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        computing = []
        for use in list(value.uses):
            user = use.owner.operation
            places = _PLACES.get(user.name.removeprefix("stablehlo."), len(user.operands))
            if user.name in _HANDING_ON and use.operand_number < places:
                waiting.append(user.results[0])
            elif user.name != "func.return":
                computing.append((user, use.operand_number))
        if computing:
            cut = _cut(value)
            for user, number in computing:
                user.operands[number] = cut


def _cut(value: ir.Value) -> ir.Value:
    """A value truncated to 32 bits, written right after it."""
    element = element_type(value)
    if isinstance(value.owner, ir.Block):
        place: AbstractContextManager[object] = ir.InsertionPoint.at_block_begin(value.owner)
    else:
        place = after(value.owner)
    with place:
        return convert(convert(value, INTEGERS_64[element]), element)


def powers_in_32_bits(module: ir.Module, policy: Policy) -> None:
    powers = ops_of(module, frozenset({"stablehlo.power"}))
    for op in _without_fp64(module, [op for op in powers if touches(op, INTEGERS_64)]):
        recompute(op, INTEGERS_64)


def _without_fp64(module: ir.Module, ops: list[ir.Operation]) -> list[ir.Operation]:
    """The ops whose 64-bit integers do not belong to FP64."""
    if not any(touches(op, INTEGERS_64) for op in ops):
        return ops
    of_fp64 = Fp64Integers(module)
    return [op for op in ops if not of_fp64.has(op)]


def matmuls(module: ir.Module, policy: Policy) -> None:
    native = NATIVE_INTEGERS_V1 if policy.core_version == 1 else frozenset()

    def differs(op: ir.Operation) -> bool:
        types = {element_type(value) for value in (*op.operands, *op.results)}
        if types & PACKED_INTEGERS:
            return False
        return bool(types & INTEGERS.keys()) and not types <= native

    for op in _without_fp64(module, [op for op in ops_of(module, MATMULS) if differs(op)]):
        recompute(op, INTEGERS)


def scatters(module: ir.Module, policy: Policy) -> None:
    combiners = [
        inner
        for op in ops_of(module, UPDATES)
        for inner in inner_ops(op)
        if inner.name in INTEGER_COMBINERS and touches(inner, INTEGERS)
    ]
    for inner in _without_fp64(module, combiners):
        recompute(inner, INTEGERS)


def collectives(name: str) -> Callable[[ir.Module, Policy], None]:
    def rewrite(module: ir.Module, policy: Policy) -> None:
        combining = [
            op
            for op in ops_of(module, frozenset({f"stablehlo.{name}"}))
            if touches(op, INTEGERS) and combines_with(op, INTEGER_COMBINERS)
        ]
        for op in _without_fp64(module, combining):
            recompute(op, INTEGERS)

    return rewrite
