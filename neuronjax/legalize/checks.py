"""Adds checks for NaN and for indices out of bounds to a program.

* NaN computed from numbers (NRT status 1003) ends up in the program's results unless it gets lost
  on the way, in a selection, a comparison or a slice. The runtime checks the results; here the
  program itself is made to check values whose NaN might get lost. Runs are not reported if NaN came
  in as an argument, or as a literal of the program, such as JAX's fill value for indices out of
  bounds. NaN in unused numbers is not detected.
* Start indices of a gather, scatter or dynamic slice that StableHLO would clamp or drop are
  reported, as the device does (NRT status 1006). The check sees indices as the program has adjusted
  them: JAX wraps negative ones, and clamps those of scatters with ``mode="clip"``. Its other modes
  leave the adjustment to StableHLO and are reported: a gather's ``clip`` and ``fill``, a scatter's
  ``drop``, and dynamic slices. Indices that XLA's partitioner shifted to a core's part of a sharded
  operand are not checked, since those of other parts are out of bounds by design.

Checking the result of every op for NaN would name the op, but XLA would take twenty times as long
to compile; that is what ``neuronjax.nan_report`` is for.

The program gets an additional result, i32[3] on every core: 1 + the number of the first failed
check for NaN, the same for checks of indices, and whether a literal NaN was used; each is 0 if not.
Loops and branches carry these states. Checks are placed at the ops of the user's program, before it
gets the chip's numerics, and see the values with these numerics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.hlo import module as hlo
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import ELEMENT_TYPES, TensorSpec
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
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize.check_points import (
    Indices,
    has_nan_literal,
    is_nan_literal,
    may_lose_nan,
    start_indices,
)
from neuronjax.legalize.emit import convert, element_type, filled, shape
from neuronjax.legalize.op_kinds import is_float, name_of, type_text
from neuronjax.legalize.policy import Policy

FLAGS = TensorSpec((3,), np.dtype(np.int32))
"""Type of the result that reports failed checks for NaN and of indices, and literal NaN."""


@dataclass(frozen=True)
class Check:
    """A checked op of a program."""

    op: str
    """The op and the type of the operand in question, such as ``select f32[4]``."""
    source: str
    """``file:line`` in the user's code."""


@dataclass(frozen=True)
class Checks:
    """The checks of a program."""

    nan: bool
    """Whether results are to be checked for NaN."""
    places: tuple[Check, ...]
    """The checks in the program, in its order."""
    flagged: bool
    """Whether the program has the result ``FLAGS``."""


@dataclass(frozen=True)
class _State:
    """The i32 scalars that are carried through the program."""

    nan: ir.Value
    index: ir.Value
    literal: ir.Value

    def values(self) -> list[ir.Value]:
        return [self.nan, self.index, self.literal]


def insert(module: ir.Module, policy: Policy) -> Checks | None:
    """Adds the checks that the policy requests; their result follows main's own results."""
    if not (policy.fail_on_nan or policy.fail_on_out_of_bounds):
        return None
    inline_calls(module)
    inserting = _Inserting(policy)
    block = hlo.main_function(module).regions[0].blocks[0]
    flagged = inserting.wanted(block)
    if flagged:
        ops = inner_ops(block)
        with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
            state = _State(*(_constant(np.zeros((), np.int32)) for _ in range(3)))
        state = inserting.block(ops, terminator(block), state)
        with ir.InsertionPoint(terminator(block)), ir.Location.unknown():
            flags = _row(inserting.returned(terminator(block), state).values())
        append_result(module, flags)
    return Checks(policy.fail_on_nan, tuple(inserting.checks), flagged)


class _Inserting:
    """The insertion of a module's checks."""

    def __init__(self, policy: Policy) -> None:
        self.checks: list[Check] = []
        self._policy = policy
        self._flags: dict[ir.Value, ir.Value] = {}

    def wanted(self, block: ir.Block) -> bool:
        """Whether there is anything to check in a block, or in loops and branches of it."""
        ops = inner_ops(block)
        return any(self._indices(op) or self._losses(op) or self._literal(op) for op in ops) or any(
            self.wanted(body) for op in ops for body in _bodies(op)
        )

    def block(self, ops: Sequence[ir.Operation], end: ir.Operation, state: _State) -> _State:
        """Adds checks after ops, the last one before op ``end``; returns the state there."""
        for op, following in zip(ops, [*ops, end][1:], strict=True):
            if op.name == LOOP:
                state = self._loop(op, state)
            elif op.name in BRANCHES:
                state = self._branches(op, state)
            else:
                with ir.InsertionPoint(following), op.location:
                    state = self._op(op, state)
        return state

    def _op(self, op: ir.Operation, state: _State) -> _State:
        if indices := self._indices(op):
            failed = _any(_outside(*index) for index in indices)
            state = replace(state, index=self._noted(state.index, failed, op, op.operands[0]))
        if losses := self._losses(op):
            failed = _any([self._has_nan(value) for value in losses])
            state = replace(state, nan=self._noted(state.nan, failed, op, losses[0]))
        if self._literal(op):
            used = _any([self._has_nan(value) for value in op.results if is_float(value)])
            state = replace(state, literal=_chosen(used, 1, state.literal))
        return state

    def returned(self, last: ir.Operation, state: _State) -> _State:
        """The state with literals that main returns, at the insertion point."""
        if self._policy.fail_on_nan and has_nan_literal(last):
            return replace(state, literal=filled(state.literal, "i32", 1))
        return state

    def _noted(
        self, state: ir.Value, failed: ir.Value, op: ir.Operation, operand: ir.Value
    ) -> ir.Value:
        """The state after a check of an operand, which may have failed."""
        self.checks.append(Check(f"{name_of(op)} {type_text(operand)}", source_line(op)))
        fresh = _compare("EQ", state, filled(state, "i32", 0))
        return _chosen(stablehlo.AndOp(fresh, failed).result, len(self.checks), state)

    def _indices(self, op: ir.Operation) -> Indices:
        return start_indices(op) if self._policy.fail_on_out_of_bounds else []

    def _losses(self, op: ir.Operation) -> list[ir.Value]:
        return may_lose_nan(op) if self._policy.fail_on_nan else []

    def _literal(self, op: ir.Operation) -> bool:
        return (
            self._policy.fail_on_nan
            and any(map(is_float, op.results))
            and has_nan_literal(op)
            and not is_nan_literal(op.results[0])
        )

    def _has_nan(self, value: ir.Value) -> ir.Value:
        """An i1 scalar after the value's definition: whether it has a NaN."""
        if value not in self._flags:
            owner = value.owner
            inside = isinstance(owner, ir.Block)
            if not inside and owner.operation.name in _SAME_ELEMENTS:
                self._flags[value] = self._has_nan(owner.operation.operands[0])
            else:
                start = ir.InsertionPoint.at_block_begin if inside else ir.InsertionPoint.after
                with start(owner), ir.Location.unknown():
                    self._flags[value] = _has_nan(value)
        return self._flags[value]

    def _loop(self, op: ir.Operation, state: _State) -> _State:
        """Carries the state through a loop's body. The condition's checks are in copies of it:
        before the loop, and at the end of every iteration."""
        condition, body = (region.blocks[0] for region in op.regions)
        copies = self.wanted(condition)
        if not (copies or self.wanted(body)):
            return state
        if copies:
            state = self.block(_copied_condition(op, op.operands, before=op), op, state)
        own = len(op.results)
        op = extend_loop(op, state.values())
        body = op.regions[1].blocks[0]
        inner = _State(*list(body.arguments)[own:])
        inner = self.block(inner_ops(body), terminator(body), inner)
        if copies:
            end = terminator(body)
            inner = self.block(_copied_condition(op, end.operands, before=end), end, inner)
        for position, value in enumerate(inner.values(), own):
            set_yield(body, position, value)
        return _State(*list(op.results)[own:])

    def _branches(self, op: ir.Operation, state: _State) -> _State:
        bodies = _bodies(op)
        if not any(map(self.wanted, bodies)):
            return state
        states = [self.block(inner_ops(body), terminator(body), state).values() for body in bodies]
        own = len(op.results)
        op = extend_branches(op, [value.type for value in state.values()], states)
        return _State(*list(op.results)[own:])


_SAME_ELEMENTS = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "reverse", "broadcast_in_dim")
)
"""Ops that change and drop no number. (An empty broadcast has no NaN, but nothing uses it.)"""


def _bodies(op: ir.Operation) -> list[ir.Block]:
    """The blocks of a loop or branching op; regions of other ops are not checked."""
    return list(blocks(op)) if op.name == LOOP or op.name in BRANCHES else []


def _copied_condition(
    op: ir.Operation, operands: Sequence[ir.Value], before: ir.Operation
) -> list[ir.Operation]:
    """Copies a loop's condition, as it is for ``operands``, before an op; returns the copies."""
    with ir.InsertionPoint(before):
        copy = op.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    ops = inner_ops(block)
    for op in ops:
        op.move_before(before)
    copy.erase()
    return ops


def _outside(indices: ir.Value, limits: np.ndarray) -> ir.Value:
    """An i1 scalar: whether an index is negative or beyond its limit."""
    dtype = ELEMENT_TYPES[element_type(indices)]
    greatest = np.minimum(limits, np.iinfo(dtype).max).astype(dtype)
    beyond = _compare("GT", indices, _constant(np.broadcast_to(greatest, shape(indices))))
    negative = _compare("LT", indices, filled(indices, element_type(indices), 0))
    return _reduced(stablehlo.OrOp(beyond, negative).result)


def _has_nan(value: ir.Value) -> ir.Value:
    """An i1 scalar: whether a float or complex value has a NaN."""
    if element_type(value).startswith("complex"):
        parts = (stablehlo.RealOp(value).result, stablehlo.ImagOp(value).result)
        return _any(map(_has_nan, parts))
    if element_type(value) != "f64":
        value = convert(value, "f32")
    return _reduced(_compare("NE", value, value))


def _compare(direction: str, left: ir.Value, right: ir.Value) -> ir.Value:
    how = stablehlo.ComparisonDirectionAttr.get(direction)
    return stablehlo.CompareOp(left, right, how).result


def _chosen(condition: ir.Value, number: int, otherwise: ir.Value) -> ir.Value:
    """An i32 scalar: ``number`` if the i1 scalar ``condition`` is true."""
    return stablehlo.SelectOp(condition, filled(otherwise, "i32", number), otherwise).result


def _row(scalars: Sequence[ir.Value]) -> ir.Value:
    """i32 scalars as a vector."""
    single = ir.RankedTensorType.get([1], ir.IntegerType.get_signless(32))
    ones = [stablehlo.ReshapeOp(single, scalar).result for scalar in scalars]
    return stablehlo.ConcatenateOp(
        ones, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    ).result


def _any(flags: Iterable[ir.Value]) -> ir.Value:
    first, *rest = flags
    for flag in rest:
        first = stablehlo.OrOp(first, flag).result
    return first


def _reduced(flags: ir.Value) -> ir.Value:
    """Whether any element of an i1 value is true."""
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    false = _constant(np.zeros((), np.bool_))
    dims = ir.DenseI64ArrayAttr.get(list(range(len(shape(flags)))))
    reduce = stablehlo.ReduceOp([scalar], [flags], [false], dims)
    block = reduce.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.OrOp(*block.arguments).result])
    return reduce.results[0]


def _constant(array: np.ndarray) -> ir.Value:
    element = next(name for name, dtype in ELEMENT_TYPES.items() if dtype == array.dtype)
    type_ = ir.Type.parse(element)
    attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=type_, shape=array.shape)
    return stablehlo.ConstantOp(attribute).result
