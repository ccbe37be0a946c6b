"""Few long rows are reduced in parts, so that all partitions work: then the parts of each row.

Element-wise operations on the way to a reduction are done for the parts, from values that lie in
memory anyway: what lies side by side stays so, and a part is a view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import IDENTITIES
from neuronjax.lower.operations import is_elementwise, is_row_reduction, is_splat, reducer
from neuronjax.lower.rates import Rates
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES


def reduce(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The reduction of the parts' reductions, and of what is left of a row."""
    dimensions = sorted(op.attributes["dimensions"])
    if not dimensions or not is_row_reduction(op):
        return None
    value, init = op.operands
    rows = math.prod(op.result.shape)
    name = str(reducer(op))
    is_across = rows == 1 or math.prod(value.shape[: dimensions[0]]) < rows
    if _last(value) not in dimensions or (name == "add" and is_across):
        return None  # the Tensor engine adds up rows
    axis = max(dimensions, key=lambda dim: value.shape[dim])
    within = math.prod(value.shape[dim] for dim in dimensions) // value.shape[axis]
    parts = _best_parts(rows, value.shape[axis], within, writer.rates, writer.tuning)
    if parts == 1:
        return None
    length = value.shape[axis] // parts
    dtype = np.dtype(np.float32) if name in _ROUNDED and _is_short(value) else value.dtype
    dims = [dim + (dim > axis) for dim in dimensions if dim != axis]
    main = writer.convert(_Parts(writer, axis, parts, length).of(value), dtype)
    shares = _reduced(writer, name, main, sorted([axis + 1, *dims]))
    place = axis - sum(dim < axis for dim in dimensions)
    total = writer.reduce(name, shares, writer.convert(init, dtype), (place,))
    if parts * length < value.shape[axis]:
        rest = _Parts(writer, axis, 1, value.shape[axis] - parts * length, parts * length)
        tail = _reduced(
            writer, name, writer.convert(rest.of(value), dtype), sorted([axis, axis + 1, *dims])
        )
        total = writer.add(name, total, tail)
    return [writer.convert(total, op.result.dtype)]


_ROUNDED = ("add", "multiply")
"""Reductions whose parts would be rounded to short types."""


def _is_short(value: Value) -> bool:
    return elementwise.is_float(value.dtype) and value.dtype.itemsize < 4


def _last(value: Value) -> int:
    """The dimension in which neighbours lie side by side."""
    return max((dim for dim, size in enumerate(value.shape) if size > 1), default=-1)


def _reduced(writer: Writer, name: str, value: Value, dimensions: Sequence[int]) -> Value:
    identity = writer.constant(IDENTITIES[name], Value(TensorSpec((), value.dtype)))
    return writer.reduce(name, value, identity, dimensions)


def _best_parts(rows: int, size: int, within: int, rates: Rates, tuning: Tuning) -> int:
    """Parts of a dimension with which a reduction takes the least time; 1: it stays whole.

    Times are in elements of a partition. What both cores make goes from one to the other by a
    transfer more.
    """
    most, trip = min(tuning.long_row_parts, size // 2), tuning.long_row_trip
    crossing = rates.transfer_ns / rates.element_ns
    turns_of_rows = -(-rows // (PARTITIONS * rates.cores))

    def elements(parts: int) -> float:
        tiles = -(-rows * parts // PARTITIONS)
        turns = -(-tiles // rates.cores)
        joined = parts + trip + (crossing if turns < tiles else 0)
        rest = (trip + turns_of_rows * (size % parts) * within) if size % parts else 0
        return turns * (size // parts * within + INSTRUCTION_CYCLES) + joined + rest

    best = min(range(2, most + 1), key=elements, default=1)
    return best if best > 1 and elements(best) < turns_of_rows * size * within else 1


@dataclass
class _Parts:
    """`parts` times `length` elements of a dimension, from `first` on, as two dimensions."""

    writer: Writer
    axis: int
    parts: int
    length: int
    first: int = 0
    known: dict[Value, Value] = field(default_factory=dict)

    def of(self, value: Value) -> Value:
        """The parts of a value that has the dimension as a whole."""
        if value not in self.known:
            self.known[value] = self._made(value)
        return self.known[value]

    def _made(self, value: Value) -> Value:
        op = value.producer
        if op is None or len(self.known) > self.writer.tuning.taken_operations:
            return self._seen(value, self.axis)
        if is_splat(value):
            number = op.attributes["value"].flat[0]
            return self.writer.constant(number, Value(TensorSpec(self._shape(value), value.dtype)))
        if op.name == "broadcast_in_dim":
            return self._broadcast(op)
        if is_elementwise(op) and op.operands:
            operands = [self.of(v) if v.shape == value.shape else v for v in op.operands]
            return self.writer.add(
                op.name, *operands, shape=self._shape(value), dtype=value.dtype, **op.attributes
            )
        return self._seen(value, self.axis)

    def _shape(self, value: Value) -> tuple[int, ...]:
        return self._parted(value.shape, self.axis)

    def _parted(self, shape: Sequence[int], axis: int) -> tuple[int, ...]:
        return (*shape[:axis], self.parts, self.length, *shape[axis + 1 :])

    def _seen(self, value: Value, axis: int) -> Value:
        """A value that is in memory."""
        count = self.parts * self.length
        if count < value.shape[axis]:
            value = self.writer.slice(value, axis, self.first, self.first + count)
        return self.writer.reshape(value, self._parted(value.shape, axis))

    def _broadcast(self, op: Op) -> Value:
        (source,), targets = op.operands, op.attributes["broadcast_dimensions"]
        own = next((d for d, t in enumerate(targets) if t == self.axis), None)
        dims = [target + (target > self.axis) for target in targets]
        if own is not None and source.shape[own] > 1:
            source = self._seen(source, own)
            dims.insert(own + 1, self.axis + 1)
        return self.writer.broadcast(source, self._shape(op.result), dims)


LONG_ROWS: Mapping[str, Rewrite] = {"reduce": reduce}
"""Operation -> what it is in parts."""
