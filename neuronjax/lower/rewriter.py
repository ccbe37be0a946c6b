"""Operations in terms of others, before anything is fused.

A rule gets a `Writer` and an operation; what it writes takes the operation's place. It returns the
values of the operation's results, or None to leave it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.rates import Rates
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import TensorEngineSpec

IS_USUAL = "is_usual"
"""Attribute of an `if` whose second branch is for values that hardly occur, such as NaN."""


@dataclass(frozen=True, slots=True)
class Context:
    """The knowledge of rules beside the operation: numbers that were chosen, prices, and what the
    Tensor engine multiplies."""

    tuning: Tuning
    rates: Rates
    tensor: TensorEngineSpec


@dataclass
class Writer:
    """The operations that take the place of one, at its source line and in its scope."""

    source: str
    scope: str
    context: Context | None = None
    operations: list[Op] = field(default_factory=list)

    def branch(self) -> Writer:
        """Returns a writer of other operations, such as those of a region, in the same place."""
        return Writer(self.source, self.scope, self.context)

    @property
    def tuning(self) -> Tuning:
        """The numbers that the compiler is free to choose."""
        return self._known.tuning

    @property
    def rates(self) -> Rates:
        """The prices of the machine."""
        return self._known.rates

    @property
    def tensor(self) -> TensorEngineSpec:
        """The Tensor engine of the machine."""
        return self._known.tensor

    @property
    def _known(self) -> Context:
        assert self.context is not None, "no rule writes this"
        return self.context

    def add(
        self,
        name: str,
        *operands: Value,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        regions: tuple[Graph, ...] = (),
        **attributes: Any,
    ) -> Value:
        """An operation of one result, by default of the last operand's shape and type."""
        shape = operands[-1].shape if shape is None else shape
        dtype = operands[-1].dtype if dtype is None else np.dtype(dtype)
        result = Value(TensorSpec(tuple(shape), dtype))
        result.producer = Op(
            name, tuple(operands), (result,), attributes, regions, self.source, None, self.scope
        )
        self.operations.append(result.producer)
        return result

    def several(
        self, name: str, operands: Sequence[Value], results: Sequence[TensorSpec],
        regions: tuple[Graph, ...], attributes: Mapping[str, Any],
    ) -> tuple[Value, ...]:  # fmt: skip
        """An operation of several results."""
        values = tuple(Value(spec) for spec in results)
        given = dict(attributes)
        op = Op(name, tuple(operands), values, given, regions, self.source, None, self.scope)
        for value in values:
            value.producer = op
        self.operations.append(op)
        return values

    def constant(self, number: Any, like: Value, dtype: Any = None) -> Value:
        """The number in all elements of another value's shape."""
        dtype = like.dtype if dtype is None else np.dtype(dtype)
        array = np.broadcast_to(np.asarray(number).astype(dtype), like.shape)
        return self.add("constant", shape=like.shape, dtype=dtype, value=array)

    def convert(self, value: Value, dtype: Any) -> Value:
        """The value converted to another type."""
        return value if value.dtype == dtype else self.add("convert", value, dtype=dtype)

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        """The truth values of a comparison."""
        return self.add("compare", left, right, dtype=np.bool_, comparison_direction=direction)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The value's elements in another shape."""
        return value if value.shape == tuple(shape) else self.add("reshape", value, shape=shape)

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """The value's elements with dimensions in another order."""
        if list(order) == sorted(order):
            return value
        shape = [value.shape[dim] for dim in order]
        return self.add("transpose", value, shape=shape, permutation=tuple(order))

    def broadcast(self, value: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
        """The value repeated along other dimensions."""
        return self.add(
            "broadcast_in_dim", value, shape=shape, broadcast_dimensions=tuple(dimensions)
        )

    def slice(self, value: Value, axis: int, start: int, limit: int) -> Value:
        """The part of a value from `start` to before `limit` of one dimension."""
        rank = len(value.shape)
        starts = tuple(start if dim == axis else 0 for dim in range(rank))
        limits = tuple(limit if dim == axis else n for dim, n in enumerate(value.shape))
        return self.add(
            "slice", value, shape=[b - a for a, b in zip(starts, limits, strict=True)],
            start_indices=starts, limit_indices=limits, strides=(1,) * rank,
        )  # fmt: skip

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        """The values one after the other along a dimension."""
        size = sum(value.shape[axis] for value in values)
        shape = [size if dim == axis else n for dim, n in enumerate(values[0].shape)]
        return self.add("concatenate", *values, shape=shape, dimension=axis)

    def windows(self, table: Value, starts: Value, length: int) -> Value:
        """So many elements of each row [rows, …, length] from places in it [rows, …, 1] on."""
        last = len(starts.shape) - 1
        numbers = {
            "offset_dims": (last,), "collapsed_slice_dims": (), "operand_batching_dims": (0,),
            "start_indices_batching_dims": (0,), "start_index_map": (1,), "index_vector_dim": last,
        }  # fmt: skip
        return self.add(
            "gather", table, starts, shape=(*starts.shape[:-1], length), dtype=table.dtype,
            dimension_numbers=numbers, slice_sizes=(1, length), indices_are_sorted=False,
        )  # fmt: skip

    def sum(self, value: Value, dimensions: Sequence[int]) -> Value:
        """Added up over dimensions."""
        zero = self.constant(0, Value(TensorSpec((), value.dtype)))
        return self.reduce("add", value, zero, dimensions)

    def reduce(self, name: str, value: Value, init: Value, dimensions: Sequence[int]) -> Value:
        """Combined over dimensions by an operation of two operands."""
        parameters = tuple(Value(TensorSpec((), value.dtype)) for _ in range(2))
        inner = self.branch()
        total = inner.add(name, *parameters)
        shape = [n for dim, n in enumerate(value.shape) if dim not in dimensions]
        return self.add(
            "reduce", value, init, shape=shape, dimensions=tuple(dimensions),
            regions=(Graph(parameters, inner.operations, (total,)),),
        )  # fmt: skip

    def made(self, op: Op, value: Value) -> list[Op]:
        """All operations; the one that makes a value makes the result of another one instead."""
        last = value.producer
        assert last is not None
        last.results, op.result.producer = (op.result,), last
        return self.operations


def is_finite(writer: Writer, value: Value) -> Value:
    """Whether all elements are finite: zeros times them add up to zero."""
    zeros = writer.add("multiply", value, writer.constant(0, value))
    total = writer.sum(writer.convert(zeros, np.float32), range(len(value.shape)))
    return writer.compare("EQ", total, writer.constant(0, total))


Rewrite = Callable[[Writer, Op], Sequence[Value] | None]


def rewrite(graph: Graph, rules: Mapping[str, Rewrite], context: Context) -> None:
    """Replaces operations that have a rule, in regions as well, until none is left; in place."""
    operations: list[Op] = []
    for op in graph.operations:
        operations += _rewritten(op, rules, context)
    graph.operations[:] = operations


def _rewritten(op: Op, rules: Mapping[str, Rewrite], context: Context) -> list[Op]:
    for region in op.regions:
        rewrite(region, rules, context)
    rule = rules.get(op.name)
    writer = Writer(op.source, op.scope, context)
    values = rule(writer, op) if rule else None
    if values is None:
        return [op]
    if len(values) == 1 and writer.operations and _is_last(writer, values[0], op.result):
        operations = writer.made(op, values[0])
        return [op for made in operations for op in _rewritten(made, rules, context)]
    for result, value in zip(op.results, values, strict=True):
        same = writer.add("reshape", value, shape=result.shape)
        producer = same.producer
        assert producer is not None
        producer.results, result.producer = (result,), producer
    return [op for made in writer.operations for op in _rewritten(made, rules, context)]


def _is_last(writer: Writer, value: Value, result: Value) -> bool:
    """Whether a value is what the last operation makes, and no other one needs."""
    return writer.operations[-1].results == (value,) and value.spec == result.spec
