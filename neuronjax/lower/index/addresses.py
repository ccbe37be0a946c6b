"""Addresses in registers: where a window begins that an index vector names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.lower.index.gather_table import Component, GatherTable
from neuronjax.lower.scope import Scope
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.view import View, dense_strides
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.control import RegisterArithmetic, RegisterLoad, RegisterMove
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Access, Dim, Immediate, Register, RegisterOffset
from neuronjax.program.operators import AluOp


def is_worth_registers(windows: int, nbytes: int, tuning: Tuning) -> bool:
    """Whether windows of so many bytes are transfers worth a register each."""
    is_great = windows <= tuning.register_windows and nbytes >= tuning.register_bytes
    return windows == 1 or is_great


def are_better(table: GatherTable, dtype: ElementType, tuning: Tuning) -> bool:
    """Whether windows are taken one by one, each over all partitions, rather than 128 at once."""
    nbytes = table.elements * bytes_of(dtype)
    return is_worth_registers(table.vectors, nbytes, tuning)


@dataclass(frozen=True, slots=True)
class Position:
    """A vector: its number, and its place in each dimension, by vectors from one to the next."""

    number: Affine
    places: Mapping[int, Affine]


@contextmanager
def positions(builder: KernelBuilder, table: GatherTable) -> Iterator[Position]:
    """Loops over all vectors, dimension by dimension if the operand shares one."""
    shape = table.shape if table.batching else (math.prod(table.shape),)
    number, places = ZERO, {}
    with ExitStack() as stack:
        for size, every in zip(shape, dense_strides(shape), strict=True):
            if size > 1:
                places[every] = stack.enter_context(builder.loop(size))
                number = number + places[every] * every
        yield Position(number, places)


def start(
    scope: Scope, builder: KernelBuilder, table: GatherTable, index: View, at: Position
) -> RegisterOffset | Affine:
    """The place where the window of a vector begins, clamped."""
    total: Register | None = None
    for component in table.components:
        if component.limit and component.step:
            loaded = load(scope, builder, table, index, component, at)
            total = plus(scope, builder, table, total, scaled(scope, builder, component, loaded))
    return offset(table, at, total)


def offset(table: GatherTable, at: Position, total: Register | None) -> RegisterOffset | Affine:
    """The rows in a register, and those of shared dimensions, in elements."""
    base = ZERO
    for shared in table.batching:
        base = base + at.places[shared.every] * (shared.step * table.apart)
    return base if total is None else RegisterOffset(total, table.apart, base)


def load(
    scope: Scope,
    builder: KernelBuilder,
    table: GatherTable,
    index: View,
    component: Component,
    at: Position,
    outside: Register | None = None,
) -> Register:
    """A component of a vector between 0 and its limit; `outside` counts those that were not."""
    stride, step = index.strides
    first = at.number * stride + (index.offset + component.column * step)
    raw = scope.unit.register(None, "raw")
    kept = scope.unit.register(component.limit, "at")
    src = Access(buffer=index.buffer, offset=first, dims=(Dim(1, 1),))
    builder.emit(RegisterLoad(dst=raw, src=src))
    if np.issubdtype(table.dtype, np.unsignedinteger):
        _limit_unsigned(scope, builder, kept, raw, component.limit)
    else:
        _arithmetic(builder, kept, AluOp.MAXIMUM, raw, 0)
        _arithmetic(builder, kept, AluOp.MINIMUM, kept, component.limit)
    if outside is not None:
        differs = scope.unit.register(1, "differs")
        builder.emit(RegisterArithmetic(dst=differs, op=AluOp.NOT_EQUAL, left=kept, right=raw))
        builder.emit(RegisterArithmetic(dst=outside, op=AluOp.ADD, left=outside, right=differs))
    return kept


def _limit_unsigned(
    scope: Scope, builder: KernelBuilder, kept: Register, raw: Register, limit: int
) -> None:
    """Registers are signed: what seems negative is beyond every limit."""
    high = scope.unit.register(limit, "high")
    _arithmetic(builder, high, AluOp.LESS, raw, 0)
    _arithmetic(builder, high, AluOp.MULTIPLY, high, limit)
    _arithmetic(builder, kept, AluOp.MINIMUM, raw, limit)
    _arithmetic(builder, kept, AluOp.MAXIMUM, kept, 0)
    builder.emit(RegisterArithmetic(dst=kept, op=AluOp.ADD, left=kept, right=high))


def scaled(
    scope: Scope, builder: KernelBuilder, component: Component, number: Register
) -> Register:
    """A number of a vector as rows."""
    if component.step == 1:
        return number
    rows = scope.unit.register(component.limit * component.step, "at")
    _arithmetic(builder, rows, AluOp.MULTIPLY, number, component.step)
    return rows


def plus(
    scope: Scope,
    builder: KernelBuilder,
    table: GatherTable,
    register: Register | None,
    other: Register,
) -> Register:
    """A sum of rows."""
    if register is None:
        return other
    total = scope.unit.register(table.rows - 1, "at")
    builder.emit(RegisterArithmetic(dst=total, op=AluOp.ADD, left=register, right=other))
    return total


def _arithmetic(
    builder: KernelBuilder, dst: Register, op: AluOp, left: Register, right: int
) -> None:
    builder.emit(RegisterArithmetic(dst=dst, op=op, left=left, right=Immediate(right)))


def shifted(at: RegisterOffset | Affine, by: Affine) -> RegisterOffset | Affine:
    """An address some elements further."""
    return replace(at, base=at.base + by) if isinstance(at, RegisterOffset) else at + by


def zero(builder: KernelBuilder, register: Register) -> None:
    """register = 0."""
    builder.emit(RegisterMove(dst=register, src=Immediate(0)))
