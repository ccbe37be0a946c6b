"""A product whose halves meet again, as a gate and what it lets pass, becomes two products.

    y = x w + b:   y[:, :n] * f(y[:, n:])  =  (x w[:, :n] + b[:n]) * f(x w[:, n:] + b[n:])

What follows is then done while PSUM is emptied, in place of a kernel that reads both halves. The
halves of weights are views, whose neighbours in memory are as many as transfers need. Those of a
head, which rotary positions take apart, are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.operations import (
    Users,
    is_constant,
    is_elementwise,
    number_of,
    peel,
    users_of,
)
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.tuning import Tuning


class _Part(NamedTuple):
    """Neighbours along one dimension of a value."""

    axis: int
    start: int
    limit: int


def with_products_of_gates(graph: Graph, tuning: Tuning) -> None:
    """Makes each half of such a product another product; in place. The whole remains, without
    a user."""
    users = users_of(graph)
    operations: list[Op] = []
    for op in graph.operations:
        part = _half(op, users, tuning.efficient_run)
        operations += [op] if part is None else _part_of_product(op, part)
    graph.operations[:] = operations


def _half(op: Op, users: Users, least_run: int) -> _Part | None:
    """The part that a slice takes of a product with weights; None: it is not half of a gate, or
    runs of these weights have fewer bytes than `least_run`."""
    part = _part_of_slice(op)
    if part is None:
        return None
    slices = users[op.operands[0]]
    parts = [_part_of_slice(user) if user is not None else None for user in slices]
    if len(parts) != 2 or not _are_halves(parts, op.operands[0].shape[part.axis]):
        return None
    value = op.operands[0]
    for step in _steps(value):
        if step.name == "dot_general":
            is_long = _run_of_weights(step, part) >= least_run
            return part if is_long and _meet(slices, users) else None
        value = _main_operand(step)
        if len(users[value]) != 1:
            return None
    return None


def _part_of_slice(op: Op) -> _Part | None:
    """What a slice takes of the one dimension that it cuts."""
    if op.name != "slice" or any(step != 1 for step in op.attributes["strides"]):
        return None
    starts, limits = op.attributes["start_indices"], op.attributes["limit_indices"]
    parts = [
        _Part(axis, int(start), int(limit))
        for axis, (start, limit) in enumerate(zip(starts, limits, strict=True))
        if limit - start != op.operands[0].shape[axis]
    ]
    return parts[0] if len(parts) == 1 else None


def _are_halves(parts: Sequence[_Part | None], size: int) -> bool:
    ends = [(part.start, part.limit) for part in parts if part is not None]
    axes = {part.axis for part in parts if part is not None}
    return sorted(ends) == [(0, size // 2), (size // 2, size)] and len(axes) == 1


def _steps(value: Value) -> Iterator[Op]:
    """The element-wise operations that make a value of a product, the last first, and that."""
    made = value.producer
    while made is not None and is_elementwise(made):
        yield made
        made = _main_operand(made).producer
    if made is not None and made.name == "dot_general":
        yield made


def _main_operand(op: Op) -> Value:
    """The operand of an element-wise operation that is not broadcast to its shape."""
    return next((value for value in op.operands if _is_whole(value)), op.operands[0])


def _is_whole(value: Value) -> bool:
    made = value.producer
    while made is not None and made.name == "convert":
        made = made.operands[0].producer
    return made is not None and made.name not in ("broadcast_in_dim", "constant")


def _side(product: Op, axis: int) -> int | None:
    """The operand whose dimension a dimension of a product's result is; None: of both."""
    numbers = product.attributes["dot_dimension_numbers"]
    batch = len(numbers["lhs_batching_dimensions"])
    left = len(product.operands[0].shape) - len(numbers["lhs_contracting_dimensions"])
    return None if axis < batch else int(axis >= left)


def _run_of_weights(product: Op, part: _Part) -> int:
    """Bytes side by side in half of the operand that a part of the result is made of; 0: it does
    not lie in memory when the program begins."""
    side = _side(product, part.axis)
    if side is None:
        return 0
    base, relation = peel(product.operands[side])
    axis = relation[_axis_of_operand(product, side, part.axis)]
    is_weight = base.producer is None or is_constant(base)
    if not is_weight or axis is None:
        return 0
    return (part.limit - part.start) * math.prod(base.shape[axis + 1 :]) * base.dtype.itemsize


def _meet(slices: Sequence[Op | None], users: Users) -> bool:
    """Whether an operation takes both halves, element by element."""
    mine, others = (set(_followers(op, users)) for op in slices if op is not None)
    return not mine.isdisjoint(others)


def _followers(op: Op, users: Users) -> Iterator[Op]:
    """The element-wise operations on a value, reshaped or not, and on what they make of it."""
    todo = [op]
    seen: set[Op] = set()
    while todo:
        for user in users[todo.pop().result]:
            if user is None or user in seen:
                continue
            if user.name == "reshape" or is_elementwise(user):
                seen.add(user)
                todo.append(user)
                yield user


def _part_of_product(op: Op, part: _Part) -> list[Op]:
    """A half of a product, computed from half of its weights."""
    *steps, product = _steps(op.operands[0])
    writer = Writer(product.source, product.scope)
    side = _side(product, part.axis)
    assert side is not None
    operands = list(product.operands)
    weights = _Part(_axis_of_operand(product, side, part.axis), part.start, part.limit)
    operands[side] = _cut(writer, operands[side], weights)
    value = _add_like(writer, product, operands, part)
    for step in reversed(steps):
        main = _main_operand(step)
        others = [
            value if operand is main else _cut(writer, operand, part) for operand in step.operands
        ]
        value = _add_like(writer, step, others, part)
    return writer.made(op, value)


def _add_like(writer: Writer, op: Op, operands: Sequence[Value], part: _Part) -> Value:
    shape = _shape_of(op.result, part)
    return writer.add(op.name, *operands, shape=shape, dtype=op.result.dtype, **op.attributes)


def _shape_of(value: Value, part: _Part) -> list[int]:
    sizes = list(value.shape)
    sizes[part.axis] = part.limit - part.start
    return sizes


def _axis_of_operand(product: Op, side: int, axis: int) -> int:
    """The dimension of an operand that is a dimension of the result."""
    numbers, name = product.attributes["dot_dimension_numbers"], ("lhs", "rhs")[side]
    bound = (*numbers[f"{name}_batching_dimensions"], *numbers[f"{name}_contracting_dimensions"])
    free = [dim for dim in range(len(product.operands[side].shape)) if dim not in bound]
    return free[axis - (len(product.result.shape) - len(free) if side else
                        len(numbers["lhs_batching_dimensions"]))]  # fmt: skip


def _cut(writer: Writer, value: Value, part: _Part) -> Value:
    """A part of an operand; of what is broadcast, a broadcast part."""
    number, made = number_of(value), value.producer
    shape = _shape_of(value, part)
    if number is not None:
        return writer.constant(number, Value(TensorSpec(tuple(shape), value.dtype)))
    if made is not None and made.name == "convert":
        return writer.convert(_cut(writer, made.operands[0], part), value.dtype)
    if made is None or made.name != "broadcast_in_dim":
        return writer.slice(value, part.axis, part.start, part.limit)
    (source,), places = made.operands, tuple(made.attributes["broadcast_dimensions"])
    if part.axis in places and source.shape[places.index(part.axis)] > 1:
        source = writer.slice(source, places.index(part.axis), part.start, part.limit)
    return writer.broadcast(source, shape, places)
