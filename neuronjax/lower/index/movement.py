"""Operations that move elements: iota, concatenate, pad, dynamic slices and updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.filling import filled
from neuronjax.lower.moves import is_same
from neuronjax.lower.operations import root_of
from neuronjax.lower.plan.parts import Part, before, part_of
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.control import RegisterArithmetic, RegisterLoad, RegisterMove
from neuronjax.program.operand import Access, Buffer, Immediate, Register, RegisterOffset
from neuronjax.program.operators import AluOp


def iota(scope: Scope, op: Op) -> None:
    """Numbers are a constant of one dimension, seen in all others."""
    value = op.result
    axis = op.attributes["iota_dimension"]
    numbers = np.arange(value.shape[axis]).astype(value.dtype)
    view = whole_view(scope.unit.constant(numbers), numbers.shape)
    scope.views[value] = view.broadcast(value.shape, (axis,))


def concatenate(scope: Scope, op: Op) -> None:
    """Transfers each operand into its part of the result, unless it was made there."""
    whole = scope.whole(op)
    for number in range(len(op.operands)):
        _place(scope, op, number, whole)


def _place(scope: Scope, op: Op, number: int, whole: View) -> None:
    """Copies an operand to its part of the whole, unless it was made there."""
    operand = op.operands[number]
    made = scope.parts.get(root_of(operand))
    if made is None or (made.op, made.number) != (op, number):
        scope.copy(*_met(scope, operand, part_of(whole, Part(op, number))), op)
    else:
        assert whole.buffer is scope.view(operand).buffer


def _met(scope: Scope, value: Value, target: View) -> tuple[View, View]:
    """The view of a value, and the one where it is to be: both as they are in front of reshapes
    that no strides express, which would be made by copies."""
    seen, there = value, target
    while seen.producer is not None and seen.producer.name in ("reshape", "transpose"):
        earlier = before(seen.producer, there)
        if earlier is None:
            break
        if seen.producer.name == "reshape":
            source = scope.view(seen.producer.operands[0])
            if source.reshaped(seen.shape) is None:
                return source, earlier
        seen, there = seen.producer.operands[0], earlier
    return scope.view(value), target


def pad(scope: Scope, op: Op) -> None:
    """The padding value everywhere, then the operand over it; negative padding cuts."""
    a = op.attributes
    low, high, interior = a["edge_padding_low"], a["edge_padding_high"], a["interior_padding"]
    source, filler = op.operands
    if source in scope.framed:
        scope.views[op.result] = scope.framed[source]
        return
    target = whole_view(scope.result(op.result), op.result.shape)
    if any(low) or any(high) or any(interior):
        fill(scope, target, filler, op)
    if source.is_empty:
        return
    first, count, start = [], [], []
    for axis, size in enumerate(source.shape):
        step = interior[axis] + 1
        begin = max(0, -(low[axis] // step)) if low[axis] < 0 else 0
        end = size - 1
        limit = op.result.shape[axis] - 1
        while begin <= end and low[axis] + end * step > limit:
            end -= 1
        if begin > end:
            return
        first.append(begin)
        count.append(end - begin + 1)
        start.append(low[axis] + begin * step)
    steps = [padding + 1 for padding in interior]
    seen = scope.view(source).sliced(
        first, [f + n for f, n in zip(first, count, strict=True)], [1] * len(first)
    )
    limits = [s + (n - 1) * d + 1 for s, n, d in zip(start, count, steps, strict=True)]
    scope.copy(seen, target.sliced(start, limits, steps), op)


def fill(scope: Scope, target: View, filler: Value, op: Op) -> None:
    """Writes one number, a value of rank 0, into all elements of a view.

    A number that is known is spread over a tile first: transfers move it in long runs.
    """
    known = root_of(filler)
    if filled(scope, target, known, op):
        return
    view = scope.view(filler)
    scope.copy(View(view.buffer, target.shape, (0,) * len(target.shape), view.offset), target, op)


def dynamic_slice(scope: Scope, op: Op) -> None:
    """A transfer from an address that registers hold."""
    operand = op.operands[0]
    source = scope.view(operand)
    indices = [scope.view(index) for index in op.operands[1:]]
    result = scope.result(op.result)
    sizes = op.result.shape
    limits = [n - s for n, s in zip(operand.shape, sizes, strict=True)]
    moving = _moving(limits, source.strides)
    if len(moving) > 1 and any(source.strides[axis] < 0 for axis in moving):
        source = whole_view(scope.dense(operand), operand.shape)
    dtypes = [index.dtype for index in op.operands[1:]]

    def write(builder: KernelBuilder, views: list[View], buffers: list[Buffer]) -> None:
        seen, *places = views
        start = start_offset(scope, builder, places, dtypes, limits, seen.strides)
        part = View(seen.buffer, sizes, seen.strides, seen.offset)
        _move(builder, whole_view(buffers[0], sizes).access(), part, start, source=True)

    key = ("dynamic_slice", sizes, tuple(limits))
    scope.kernel("dynamic_slice", [op], key, [source, *indices], [result], write)


def dynamic_update_slice(scope: Scope, op: Op) -> None:
    """The update goes into the operand's memory if nobody else needs that, else into a copy."""
    operand, update, *starts = op.operands
    result = in_place(scope, op, operand)
    indices = [scope.view(index) for index in starts]
    dtypes = [index.dtype for index in starts]
    limits = [n - s for n, s in zip(operand.shape, update.shape, strict=True)]

    def write(builder: KernelBuilder, views: list[View], _: list[Buffer]) -> None:
        target, source, *places = views
        start = start_offset(scope, builder, places, dtypes, limits, target.strides)
        part = View(target.buffer, update.shape, target.strides, target.offset)
        _move(builder, source.access(), part, start, source=False)

    key = ("dynamic_update_slice", update.shape, tuple(limits))
    scope.kernel(
        "dynamic_update_slice", [op], key, [result, scope.view(update), *indices], [], write
    )


def counted_update_slice(scope: Scope, op: Op) -> None:
    """The update goes into the operand's memory, or a copy of it, at a place that is known."""
    whole = in_place(scope, op, op.operands[0])
    if not op.operands[1].is_empty:
        _place(scope, op, 1, whole)


def in_place(scope: Scope, op: Op, operand: Value, result: Value | None = None) -> View:
    """The view of an operation's result in the memory of an operand, or in a copy of it.

    `result` says which result, of several. One that is wanted elsewhere is copied there.
    """
    result = result or op.result
    alone = sum(root_of(value) is root_of(operand) for value in op.operands) == 1
    wanted = result in scope.preferred or result in scope.parts
    if alone and scope.dies(operand, scope.current) and not wanted:
        view = scope.view(operand)
        if view.is_dense:
            scope.views[result] = view
            return view
    source = scope.view(operand)
    scope.place(result, in_any_order=False)
    target = scope.views[result]
    if not is_same(source, target):
        scope.copy(source, target, op)
    return target


def start_offset(
    scope: Scope,
    builder: KernelBuilder,
    places: Sequence[View],
    dtypes: Sequence[np.dtype],
    limits: Sequence[int],
    strides: Sequence[int],
) -> RegisterOffset | None:
    """Σ clamp(index, 0, limit) · stride in a register; None if every limit is 0.

    A negative stride may be the only one: a register holds no negative sum.
    """
    moving = _moving(limits, strides)
    if not moving:
        return None
    if len(moving) == 1:
        (axis,) = moving
        register = clamped(scope, builder, places[axis], dtypes[axis], limits[axis])
        return RegisterOffset(register, strides[axis])
    total = scope.unit.register(sum(limits[axis] * strides[axis] for axis in moving), "at")
    builder.emit(RegisterMove(dst=total, src=Immediate(0)))
    for axis in moving:
        register = clamped(scope, builder, places[axis], dtypes[axis], limits[axis])
        scaled = scope.unit.register(limits[axis] * strides[axis], "at")
        stride = Immediate(strides[axis])
        builder.emit(RegisterArithmetic(dst=scaled, op=AluOp.MULTIPLY, left=register, right=stride))
        builder.emit(RegisterArithmetic(dst=total, op=AluOp.ADD, left=total, right=scaled))
    return RegisterOffset(total)


def _moving(limits: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The axes whose index changes the address."""
    return [axis for axis, limit in enumerate(limits) if limit > 0 and strides[axis]]


def clamped(
    scope: Scope, builder: KernelBuilder, place: View, dtype: np.dtype, limit: int
) -> Register:
    """The one element of a view in a register, between 0 and `limit`."""
    register = scope.unit.register(limit, "at")
    builder.emit(RegisterLoad(dst=register, src=place.access()))
    if not np.issubdtype(dtype, np.unsignedinteger):
        builder.emit(
            RegisterArithmetic(dst=register, op=AluOp.MAXIMUM, left=register, right=Immediate(0))
        )
    builder.emit(
        RegisterArithmetic(dst=register, op=AluOp.MINIMUM, left=register, right=Immediate(limit))
    )
    return register


def _move(
    builder: KernelBuilder,
    other: Access,
    part: View,
    start: RegisterOffset | None,
    *,
    source: bool,
) -> None:
    """A transfer between `other` and a part of a buffer that begins at `start`."""
    part_access = part.access(start)
    src, dst = (part_access, other) if source else (other, part_access)
    builder.copy(dst, src)


def nothing(scope: Scope, op: Op) -> None:
    """Tokens order what stands in order anyway."""


RULES = {
    "after_all": nothing,
    "create_token": nothing,
    "iota": iota,
    "concatenate": concatenate,
    "pad": pad,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "counted_update_slice": counted_update_slice,
}
"""Operation -> rule."""
