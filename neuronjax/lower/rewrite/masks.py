"""Masks of indices that hide most of what they are for: made in its shape, where they are needed.

A mask of queries and keys is usually made once, for all heads. If it shows few of the keys, as a
window over a long text does, attention asks for little of it, and all of it takes longer to make
than what is asked for, even anew for each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import is_elementwise, is_splat, peel
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.lower.values.bounds import Bounds, Range
from neuronjax.machine.specs import PARTITIONS

_LINES = frozenset({"constant", "iota"})
"""What masks begin with: numbers, and indices along one axis."""


def select(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A choice by a mask of indices, if most of the mask is not asked for."""
    predicate, *choices = op.operands
    shape = op.result.shape
    axes = sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:]
    count = math.prod(shape[axis] for axis in axes)
    if predicate.shape != shape or count < writer.tuning.mask_blocks * PARTITIONS**2:
        return None
    if _is_made(predicate, shape) or not _is_of_indices(predicate):
        return None
    if _shown(predicate, axes) * math.prod(shape) > count:
        return None
    return [writer.add("select", _mask(writer, predicate, shape, range(len(shape))), *choices)]


def _holds_behind(value: Value, judge: Callable[[Value, Op | None], bool | None]) -> bool:
    """Whether no value is refused of all that a value is made of.

    `judge` says so at once, or leaves it to the operands (None). Each value is looked at once: what
    random numbers are made of reads the same values on very many ways.
    """
    waiting, known = [value], {value}
    while waiting:
        behind = waiting.pop()
        op = behind.producer
        verdict = judge(behind, op)
        if verdict is False:
            return False
        if verdict is None and op is not None:
            waiting += [operand for operand in op.operands if operand not in known]
            known.update(op.operands)
    return True


def _is_made(value: Value, shape: Sequence[int]) -> bool:
    """Whether a mask is made in a shape of lines of indices."""

    def judge(behind: Value, op: Op | None) -> bool | None:
        if op is None or op.name in _LINES:
            return True
        if op.name == "broadcast_in_dim":
            return sum(size > 1 for size in op.operands[0].shape) < 2
        return None if behind.shape == shape else False

    return _holds_behind(value, judge)


def _shown(mask: Value, axes: Sequence[int]) -> float:
    """The part of a mask's blocks along two axes in which it may be true."""
    indices = [Range.of(0, size - 1) for size in mask.shape]
    for axis, shape in zip(axes, ((-1, 1), (1, -1)), strict=True):
        low = np.arange(0, mask.shape[axis], PARTITIONS, dtype=np.float64)
        high = np.minimum(low + PARTITIONS, mask.shape[axis]) - 1
        indices[axis] = Range(low.reshape(shape), high.reshape(shape))
    return float(np.mean(Bounds().of(mask, indices).high > 0))


def _is_of_indices(value: Value) -> bool:
    """Whether nothing but indices and numbers decides a value."""

    def judge(behind: Value, op: Op | None) -> bool | None:
        if op is None:
            return False
        if op.name in _LINES:
            is_line = sum(size > 1 for size in behind.shape) < 2
            return op.name == "iota" or is_splat(behind) or is_line
        is_plain = op.name == "broadcast_in_dim" or is_elementwise(op)
        is_plain = is_plain or (op.name == "reshape" and peel(behind)[0] is not behind)
        return None if is_plain else False

    return _holds_behind(value, judge)


def _long_axis(value: Value) -> int:
    """The one axis of a value of which it has several elements."""
    return next((axis for axis, size in enumerate(value.shape) if size > 1), 0)


def _mask(writer: Writer, value: Value, shape: Sequence[int], dims: Sequence[int | None]) -> Value:
    """A value of indices in another shape; `dims` has the dimension for each of its own."""
    base, relation = peel(value)
    if base is not value:
        back: list[int | None] = [None] * len(base.shape)
        for own, axis in zip(dims, relation, strict=True):
            if axis is not None:
                back[axis] = own
        return _mask(writer, base, shape, back)
    op = value.producer
    assert op is not None
    if is_splat(value):
        number = np.broadcast_to(op.attributes["value"].flat[0], shape)
        return writer.add("constant", shape=shape, dtype=value.dtype, value=number)
    if op.name in _LINES:
        axis = op.attributes.get("iota_dimension", _long_axis(value))
        size = value.shape[axis : axis + 1]
        if op.name == "iota":
            line = writer.add("iota", shape=size, dtype=value.dtype, iota_dimension=0)
        else:
            line = writer.reshape(value, size)
        dim = dims[axis] if size else None
        return writer.broadcast(line, shape, () if dim is None else (dim,))
    operands = [_mask(writer, operand, shape, dims) for operand in op.operands]
    return writer.add(op.name, *operands, shape=shape, dtype=value.dtype, **op.attributes)


MASKS: Mapping[str, Rewrite] = {"select": select}
"""Operation -> rule."""
