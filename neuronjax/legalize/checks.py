"""Watching a program for NaN and for indices out of bounds while it runs.

The program gets one more result, an i32 scalar on each core: 0, or 1 + the number of the first
check that failed there. Loops and branches hand it on. Checks stand at the ops of the user's
program, before the chip's numerics rewrite them, and see the values these lead to.

* NaN: an op computed NaN while no operand had one (NRT status 1003).
* Out of bounds: a start index of a gather, scatter or dynamic slice lies outside what StableHLO
  clamps to or drops, which the device reports (NRT status 1006). What a program does to its indices
  first is seen: JAX wraps negative ones, and clamps those of scatters with ``mode="clip"``. Its
  other modes leave the rest to StableHLO and are reported: a gather's ``clip`` and ``fill``, a
  scatter's ``drop``, and dynamic slices. Not checked are indices that XLA's partitioner shifted to
  a core's part of a sharded operand: those of other parts are out of bounds by its design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronjax.hlo import module as hlo
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.hlo.structure import (
    BRANCHES,
    LOOP,
    append_result,
    blocks,
    extend_branches,
    extend_loop,
    inline_calls,
    inner_ops,
    set_yield,
    terminator,
)
from neuronjax.legalize.emit import convert, element_type, filled, shape
from neuronjax.legalize.op_kinds import computes, is_float, name_of, type_text
from neuronjax.legalize.policy import Policy

NAN, OUT_OF_BOUNDS = "nan", "out_of_bounds"


@dataclass(frozen=True)
class Check:
    """A place where a program is watched."""

    kind: str
    """``NAN`` or ``OUT_OF_BOUNDS``."""
    op: str
    """The op and its type, such as ``log f32[4]``."""
    source: str
    """``file:line`` in the user's code."""


def insert(module: ir.Module, policy: Policy) -> tuple[Check, ...]:
    """Adds the checks that the policy asks for; the i32 result follows main's own results.

    Returns them in the order of their numbers; empty if there are none, and no result then.
    """
    if not (policy.fail_on_nan or policy.fail_on_out_of_bounds):
        return ()
    inline_calls(module)
    inserting = _Inserting(policy)
    block = hlo.main_function(module).regions[0].blocks[0]
    if not inserting.wanted(block):
        return ()
    ops = inner_ops(block)
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        state = _constant(np.zeros((), np.int32))
    append_result(module, inserting.block(ops, terminator(block), state))
    return tuple(inserting.checks)


class _Inserting:
    """One module's checks. ``state`` is the i32 scalar up to a point of the program."""

    def __init__(self, policy: Policy) -> None:
        self.checks: list[Check] = []
        self._policy = policy
        self._flags: dict[Any, Any] = {}

    def wanted(self, block: Any) -> bool:
        """Whether an op of a block, or of a loop or branch in it, is to be checked."""
        return any(
            self._computes(op) or self._indices(op) or any(map(self.wanted, _bodies(op)))
            for op in inner_ops(block)
        )

    def block(self, ops: Sequence[Any], end: Any, state: Any) -> Any:
        """Adds checks behind ops, the last before op ``end``; returns the state there."""
        for op, following in zip(ops, [*ops, end][1:], strict=True):
            if op.name == LOOP:
                state = self._loop(op, state)
            elif op.name in BRANCHES:
                state = self._branches(op, state)
            else:
                state = self._op(op, following, state)
        return state

    def _op(self, op: Any, following: Any, state: Any) -> Any:
        if indices := self._indices(op):
            with ir.InsertionPoint(following), op.location:
                failed = _any(_outside(*each) for each in indices)
                state = self._noted(state, failed, OUT_OF_BOUNDS, op, type_text(op.operands[0]))
        if self._computes(op):
            given = [self._flag(value) for value in op.operands if is_float(value)]
            made = [self._flag(value) for value in op.results if is_float(value)]
            with ir.InsertionPoint(following), op.location:
                failed = _any(made)
                if given:
                    failed = stablehlo.AndOp(failed, stablehlo.NotOp(_any(given))).result
                state = self._noted(state, failed, NAN, op, type_text(op.results[0]))
        return state

    def _noted(self, state: Any, failed: Any, kind: str, op: Any, type_: str) -> Any:
        """The state after a check that has failed or not."""
        self.checks.append(Check(kind, f"{name_of(op)} {type_}", source_line(op)))
        fresh = _compare("EQ", state, filled(state, "i32", 0))
        now = stablehlo.AndOp(fresh, failed).result
        return stablehlo.SelectOp(now, filled(state, "i32", len(self.checks)), state).result

    def _computes(self, op: Any) -> bool:
        return self._policy.fail_on_nan and computes(op)

    def _flag(self, value: Any) -> Any:
        """An i1 scalar behind the value's definition: whether it has a NaN."""
        if value not in self._flags:
            owner = value.owner
            inside = isinstance(owner, ir.Block)
            if not inside and owner.operation.name in _SAME_ELEMENTS:
                self._flags[value] = self._flag(owner.operation.operands[0])
            else:
                start = ir.InsertionPoint.at_block_begin if inside else ir.InsertionPoint.after
                with start(owner), ir.Location.unknown():
                    self._flags[value] = _has_nan(value)
        return self._flags[value]

    def _indices(self, op: Any) -> list[tuple[Any, Any]]:
        """The start indices of an op and the greatest that are allowed; empty if it has none."""
        find = _LIMITS.get(op.name) if self._policy.fail_on_out_of_bounds else None
        return [each for each in find(op) if not _shifted_by_core(each[0])] if find else []

    def _loop(self, op: Any, state: Any) -> Any:
        """The state goes round with the body. What a condition does counts where a copy of it
        stands: before the loop, and at the end of each iteration."""
        condition, body = (region.blocks[0] for region in op.regions)
        if not (self.wanted(condition) or self.wanted(body)):
            return state
        copies = self.wanted(condition)
        if copies:
            state = self.block(_copied_condition(op, op.operands, before=op), op, state)
        op = extend_loop(op, [state])
        body = op.regions[1].blocks[0]
        inner = self.block(inner_ops(body), terminator(body), list(body.arguments)[-1])
        if copies:
            end = terminator(body)
            inner = self.block(_copied_condition(op, end.operands, before=end), end, inner)
        set_yield(body, len(op.results) - 1, inner)
        return list(op.results)[-1]

    def _branches(self, op: Any, state: Any) -> Any:
        bodies = _bodies(op)
        if not any(map(self.wanted, bodies)):
            return state
        states = [[self.block(inner_ops(each), terminator(each), state)] for each in bodies]
        op = extend_branches(op, [state.type], states)
        return list(op.results)[-1]


_SAME_ELEMENTS = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "reverse", "broadcast_in_dim")
)
"""Ops that change no number and leave none out. (An empty broadcast has no NaN, but no user.)"""


def _bodies(op: Any) -> list[Any]:
    """The blocks of a loop or branching op; regions of other ops are not looked into."""
    return list(blocks(op)) if op.name == LOOP or op.name in BRANCHES else []


def _copied_condition(op: Any, operands: Sequence[Any], before: Any) -> list[Any]:
    """Copies a loop's condition, as it is for ``operands``, before an op; returns the copies."""
    with ir.InsertionPoint(before):
        copy = op.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    ops = inner_ops(block)
    for each in ops:
        each.move_before(before)
    copy.erase()
    return ops


def _shifted_by_core(index: Any) -> bool:
    """Whether the partitioner has shifted an index by the position of the core.

    It subtracts an entry of a constant table, found by the core's number, from the index. A number
    that the program itself asks for is known by its name.
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


def _looks_up_constant(op: Any) -> bool:
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
"""JAX's name for a core number that a program asks for."""


def _gather_limits(op: Any) -> list[tuple[Any, Any]]:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    operand, indices = op.operands
    limits = [shape(operand)[dim] - sizes[dim] for dim in numbers.start_index_map]
    return [(indices, _along(indices, limits, numbers.index_vector_dim))]


def _scatter_limits(op: Any) -> list[tuple[Any, Any]]:
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


def _slice_limits(sized: Callable[[Any], Any], first_index: int) -> Callable[[Any], Any]:
    """For dynamic slices: ``sized`` gives the value whose shape is the slice's."""

    def limits(op: Any) -> list[tuple[Any, Any]]:
        sizes = zip(shape(op.operands[0]), shape(sized(op)), strict=True)
        indices = list(op.operands)[first_index:]
        pairs = zip(indices, sizes, strict=True)
        return [(index, np.array(whole - part)) for index, (whole, part) in pairs]

    return limits


_LIMITS: dict[str, Callable[[Any], list[tuple[Any, Any]]]] = {
    "stablehlo.gather": _gather_limits,
    "stablehlo.scatter": _scatter_limits,
    "stablehlo.dynamic_slice": _slice_limits(lambda op: op.results[0], 1),
    "stablehlo.dynamic_update_slice": _slice_limits(lambda op: op.operands[1], 2),
}
"""Op -> its start indices, each with the greatest allowed as an array of broadcastable shape."""


def _along(indices: Any, limits: list[int], dim: int) -> np.ndarray:
    """``limits`` along a dimension of ``indices``; the dimension may be left out there."""
    dims = [1] * len(shape(indices))
    if dim < len(dims):
        dims[dim] = len(limits)
    return np.array(limits).reshape(dims)


def _outside(indices: Any, limits: np.ndarray) -> Any:
    """An i1 scalar: whether an index is negative or beyond its limit."""
    dtype = ELEMENT_TYPES[element_type(indices)]
    greatest = np.minimum(limits, np.iinfo(dtype).max).astype(dtype)
    beyond = _compare("GT", indices, _constant(np.broadcast_to(greatest, shape(indices))))
    negative = _compare("LT", indices, filled(indices, element_type(indices), 0))
    return _reduced(stablehlo.OrOp(beyond, negative).result)


def _has_nan(value: Any) -> Any:
    """An i1 scalar: whether a float or complex value has a NaN."""
    if element_type(value).startswith("complex"):
        parts = (stablehlo.RealOp(value).result, stablehlo.ImagOp(value).result)
        return _any(map(_has_nan, parts))
    if element_type(value) != "f64":
        value = convert(value, "f32")
    return _reduced(_compare("NE", value, value))


def _compare(direction: str, left: Any, right: Any) -> Any:
    how = stablehlo.ComparisonDirectionAttr.get(direction)
    return stablehlo.CompareOp(left, right, how).result


def _any(flags: Iterable[Any]) -> Any:
    first, *rest = flags
    for flag in rest:
        first = stablehlo.OrOp(first, flag).result
    return first


def _reduced(flags: Any) -> Any:
    """Whether any element of an i1 value is true."""
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    false = _constant(np.zeros((), np.bool_))
    dims = ir.DenseI64ArrayAttr.get(list(range(len(shape(flags)))))
    reduce = stablehlo.ReduceOp([scalar], [flags], [false], dims)
    block = reduce.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.OrOp(*block.arguments).result])
    return reduce.results[0]


def _constant(array: np.ndarray) -> Any:
    element = next(name for name, dtype in ELEMENT_TYPES.items() if dtype == array.dtype)
    type_ = ir.Type.parse(element)
    attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=type_, shape=array.shape)
    return stablehlo.ConstantOp(attribute).result
